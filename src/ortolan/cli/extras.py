"""Packages that only some installations have."""

from collections.abc import Iterator
from contextlib import contextmanager

from ortolan.distribution import LEFT_OUT, is_runtime_only, pip_install
from ortolan.errors import OrtolanError, RuntimeOnlyError


class MissingPackageError(OrtolanError, code="missing-extra"):
    """A package of an optional extra is not installed."""


@contextmanager
def extra(name: str, *, command: str) -> Iterator[None]:
    """Import packages of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if is_runtime_only() and error.name in {f"ortolan.{room}" for room in LEFT_OUT}:
            raise RuntimeOnlyError(f"`ortolan {command}` of a checkpoint", name) from error
        raise MissingPackageError(
            f"{command} needs the package {error.name}. Run: {pip_install(name)}"
        ) from error
