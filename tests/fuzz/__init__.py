"""A coverage-guided fuzzer of what reads bytes from strangers, its targets, and the inputs it has kept."""
