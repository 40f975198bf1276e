"""Checks a bundle on this machine: replays its certificate, or tries a load in a subprocess."""
