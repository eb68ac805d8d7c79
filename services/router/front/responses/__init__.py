"""/v1/responses: conversations in the shapes of OpenAI's Responses. The model sees them as it sees any
chat."""
