"""PyTorch: capture a model, plan its training step and run the plan."""
