"""Other people's clients, unchanged, against a mesh with the development model (`make test-clients`)."""
