"""Training by a recipe."""
