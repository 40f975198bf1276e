"""Writes weights to the weight file of a bundle."""
