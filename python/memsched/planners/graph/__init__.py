"""Planners of graphs and families."""
