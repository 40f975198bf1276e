"""Bundles that nobody trusts: a first load in a process of its own, and which were verified."""
