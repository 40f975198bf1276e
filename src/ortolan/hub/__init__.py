"""Repositories of the Hugging Face Hub, by name.

`fetch_checkpoint`, `fetch_adapter` and `fetch_bundle` fetch what is needed, and nothing else, into
the cache of `huggingface_hub`, the only package that talks to the Hub (extra `hub`). `upload`
publishes bundles.
"""
