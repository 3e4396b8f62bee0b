"""Any training step as a `Graph`, operation by operation."""
