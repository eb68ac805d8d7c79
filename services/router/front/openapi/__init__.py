"""What this API is, for machines: OpenAPI from the Structs of which bodies and answers are made."""
