"""What a model's text means: thoughts, words for the client, calls of tools. Pure and incremental: text in
pieces goes in, and what comes out does not depend on how it was cut."""
