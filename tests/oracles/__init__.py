"""Slow, obviously right oracles: plain Python that shares no code with the product."""
