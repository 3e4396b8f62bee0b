"""Planned training steps against what people use today, on a real GPU: `python -m bench.gpu`."""
