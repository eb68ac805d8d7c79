"""The engine's torch half for a GPU."""
