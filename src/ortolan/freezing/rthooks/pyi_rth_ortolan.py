"""Lets a frozen program start as the subprocess that loads unverified bundles first."""

from ortolan.freezing import become_child_if_asked

become_child_if_asked()
