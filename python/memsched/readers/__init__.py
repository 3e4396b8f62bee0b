"""Readers of a newcomer's own data: tables, graphs of networkx, ONNX models, and snapshots of PyTorch's allocator."""
