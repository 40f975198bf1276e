"""Errors of the Hub."""

from ortolan.errors import OrtolanError


class HubError(OrtolanError):
    """The Hub cannot be reached, refuses a request, or its library is not installed."""

    code = "hub"


class RepositoryError(HubError):
    """A repository is missing, or has not the files that were expected."""

    code = "repository"
