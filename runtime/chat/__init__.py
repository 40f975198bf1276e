"""Chat: messages to a prompt by the chat template of a bundle, and replies to data."""
