"""Exports PyTorch models to ONNX bundles.

The package is callable: `ortolan.export("checkpoint/", "bundle/")` is
`ortolan.export.pipeline.export`. The package and the function share one name in `ortolan`.
"""

import sys
from types import ModuleType
from typing import Any

from ortolan.export.errors import ExportError, OptionError, OutputError, ParityError

__all__ = ["ExportError", "OptionError", "OutputError", "ParityError"]


class _CallableModule(ModuleType):
    """A module that can be called as the function `export`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ortolan.export.pipeline import export

        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
