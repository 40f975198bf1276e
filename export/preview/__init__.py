"""What an export would make, and what it costs, without reading any weights."""
