"""How far a user's own module reaches across tokens and texts without its state."""
