"""The CPU's forward in C++, compiled where it runs; without a compiler torch computes it."""
