"""GGUF files: config, tokenizer and tensors in one file."""
