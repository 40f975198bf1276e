"""Texts, images and sounds through an encoder, in batches of similar length."""
