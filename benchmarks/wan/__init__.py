"""A line that behaves like a WAN, on one machine."""
