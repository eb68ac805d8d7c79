"""The mesh under load and fault, measured beside what else could be done: same code, other configuration."""
