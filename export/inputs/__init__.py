"""Inputs of a model: what it is calibrated on and proven with."""
