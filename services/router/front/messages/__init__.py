"""/v1/messages: conversations in Anthropic's shapes. The model sees them as it sees any chat."""
