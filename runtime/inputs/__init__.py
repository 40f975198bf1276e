"""Checks texts, token ids and images, and prepares them for a graph."""
