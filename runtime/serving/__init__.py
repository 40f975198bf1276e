"""One loaded model, many requests."""
