"""Weights into the file of a bundle, some rows at a time."""
