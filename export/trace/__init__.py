"""From PyTorch modules to graphs without weights, one file for each kind of model."""
