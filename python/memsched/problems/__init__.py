"""What is planned: chains, graphs and families, their bounds, and the networks to make them of."""
