"""Any causal language model of transformers: built without weights, read under its own names."""
