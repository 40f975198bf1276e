"""Previews of an export: the bundle and its cost. No weights are read."""
