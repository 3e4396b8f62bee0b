"""Plans for models that torch.export cannot capture: their own forward runs, and what autograd saves is offloaded."""
