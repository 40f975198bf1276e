"""Benchmarks of a bundle on this machine."""
