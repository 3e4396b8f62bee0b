"""Planners that recompute."""
