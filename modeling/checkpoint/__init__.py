"""Checkpoint folders, read and written."""
