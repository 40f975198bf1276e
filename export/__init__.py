"""PyTorch to a bundle: trace, weights, passes, certificate.

This module can be called: `ortolan.export("checkpoint/", "bundle/")` is
`ortolan.export.pipeline.export`. A package and a function of one name share one attribute of
`ortolan`, so the package answers calls too.
"""

import sys
from types import ModuleType
from typing import Any

from ortolan.export.errors import ExportError, OptionError, OutputError, ParityError

__all__ = ["ExportError", "OptionError", "OutputError", "ParityError"]


class _CallableModule(ModuleType):
    """A module that is also the function `export`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ortolan.export.pipeline import export

        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
