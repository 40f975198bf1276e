"""Verifies bundles: replays certificates (`replay`), and loads in a subprocess (`first_load`)."""
