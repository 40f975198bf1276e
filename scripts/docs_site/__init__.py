"""Pages of the documentation site, generated from the repository; see `scripts/build_docs.py`."""
