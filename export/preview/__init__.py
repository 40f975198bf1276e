"""Previews of an export: the bundle, the cost, and how it would run. No weights are read."""
