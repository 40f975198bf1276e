"""GGUF files: a config, a tokenizer and tensors in one."""
