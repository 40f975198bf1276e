"""Packages that some commands need and not every installation has."""

from collections.abc import Iterator
from contextlib import contextmanager

from ortolan.errors import OrtolanError


class MissingExportError(OrtolanError):
    """The packages of the extra `export` are absent."""

    code = "missing-extra"


@contextmanager
def export_packages(command: str) -> Iterator[None]:
    """Import something that needs the extra `export`.

    Raises:
        MissingExportError: a package is absent.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExportError(
            f"{command}: expected the package {error.name}, got none. "
            'Run: pip install "ortolan[export]"'
        ) from error
