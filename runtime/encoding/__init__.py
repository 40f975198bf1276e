"""Texts and images through an encoder, in batches of similar length."""
