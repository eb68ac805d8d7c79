"""What an answer's words must look like: asked for in several APIs' fields, kept to by every decoder.

The router writes the grammar and tries it when it takes a request; decoders follow it along the log.
"""
