"""Decoders, encoders, and encoder-decoders."""
