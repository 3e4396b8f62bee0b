"""Studies beyond a single planner call: comparisons, frontiers, sweeps, addresses."""
