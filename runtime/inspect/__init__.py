"""What a bundle holds, and what would make it faster."""
