"""Checkpoints whose tensors are stored in few bits, by the method that their config names."""
