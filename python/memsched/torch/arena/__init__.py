"""Planned addresses, served: an allocator that puts a step's tensors where they were placed."""
