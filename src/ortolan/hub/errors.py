"""Errors of the Hub."""

from ortolan.errors import OrtolanError


class HubError(OrtolanError, code="hub"):
    """The Hub cannot be reached, refuses a request, or its library is not installed."""


class RepositoryError(HubError, code="repository"):
    """A repository is missing, or has not the files that were expected."""
