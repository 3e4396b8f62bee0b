"""Training steps that torch.compile captures, planned for a budget and run as generated code."""
