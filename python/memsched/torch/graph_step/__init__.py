"""Whole training steps as graphs of operations, and their plans run on PyTorch."""
