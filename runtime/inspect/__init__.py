"""Describes bundles: contents, memory, placement, and advice for more speed."""
