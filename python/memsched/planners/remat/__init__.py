"""Planners that run again what was thrown away."""
