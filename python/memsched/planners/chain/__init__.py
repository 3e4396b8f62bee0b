"""Planners of chains that offload. Some also take graphs."""
