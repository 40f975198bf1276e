"""Text and images to learn from that every machine has, or can make from a seed.

Each corpus says what is learned from and what is held out. None knows models or tokens.
"""
