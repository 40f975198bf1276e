"""Weights prepared for this processor."""
