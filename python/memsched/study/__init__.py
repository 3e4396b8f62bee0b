"""What is asked of problems and plans beyond one planner: comparisons, frontiers, sweeps, addresses."""
