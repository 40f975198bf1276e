"""Low-bit checkpoints, by the quantization method that their config names."""
