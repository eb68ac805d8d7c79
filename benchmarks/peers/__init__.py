"""Other transfer engines, each a program for an interpreter of its own; its docstring says what it needs.

A program moves memory between two processes on this machine for a while and says what it reached as one JSON
line: `{"peer", "version", "chunk_kib", "gbit_s"}`. It imports nothing of this project.
"""
