"""Packages that only some installations have."""

from collections.abc import Iterator
from contextlib import contextmanager

from ortolan.errors import OrtolanError


class MissingPackageError(OrtolanError):
    """A package of an optional extra is not installed."""

    code = "missing-extra"


@contextmanager
def extra(name: str, *, command: str) -> Iterator[None]:
    """Import packages of an extra.

    Raises:
        MissingPackageError: one is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f'{command} needs the package {error.name}. Run: pip install "ortolan[{name}]"'
        ) from error
