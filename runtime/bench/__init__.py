"""How fast a bundle is here."""
