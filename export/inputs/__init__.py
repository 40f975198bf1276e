"""Inputs that a model is calibrated and proven with."""
