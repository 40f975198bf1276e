"""Texts, ids and images, checked and made into what graphs take."""
