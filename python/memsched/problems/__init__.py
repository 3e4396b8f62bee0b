"""Problems: chains, graphs and families, their lower bounds, and well-known networks."""
