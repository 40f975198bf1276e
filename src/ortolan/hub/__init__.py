"""Repositories of the Hugging Face Hub, by name.

`fetch_checkpoint`, `fetch_adapter` and `fetch_bundle` fetch what is needed, and nothing else, into
the cache of `huggingface_hub`, the only package that talks to the Hub (extra `hub`). `upload`
publishes bundles.
"""

from ortolan.errors import OrtolanError


class HubError(OrtolanError, code="hub"):
    """The Hub cannot be reached, refuses a request, or its library is not installed."""


class RepositoryError(HubError, code="repository"):
    """A repository is missing, or has not the files that were expected."""
