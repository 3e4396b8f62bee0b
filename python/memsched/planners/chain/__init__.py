"""Planners of chains that offload; some take graphs, too."""
