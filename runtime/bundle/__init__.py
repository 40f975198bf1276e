"""The folder of a bundle: its manifest, its files, and what may be in them."""
