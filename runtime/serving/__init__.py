"""One loaded model for many requests: from any thread, and from asyncio."""
