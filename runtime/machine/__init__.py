"""Memory, processor and limits of this machine."""
