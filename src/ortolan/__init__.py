"""Ortolan: a transformer trained in PyTorch, generating on a small machine.

    import ortolan

    bundle = ortolan.export("checkpoint/", "bundle/")  # needs ortolan[export]
    model = ortolan.load("bundle/")                    # needs ortolan[cpu]
    print(model.generate("def main(", max_new_tokens=64).text)
    ortolan.load("translator/", ortolan.Seq2Seq).generate("I live in Paris.", beams=4)
    ortolan.load("classifier/", ortolan.Encoder).classify(["a text", "another"])

Importing this module loads none of the rooms: `modeling`, `export` and `runtime` come on
first use, so that a device without PyTorch never asks for it.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortolan.errors import OrtolanError

if TYPE_CHECKING:
    from ortolan import modeling, runtime
    from ortolan.export.options import ExportOptions
    from ortolan.export.pipeline import export
    from ortolan.export.precision import Int4, Int8
    from ortolan.runtime import Encoder, Seq2Seq, load

__all__ = [
    "Encoder",
    "ExportOptions",
    "Int4",
    "Int8",
    "OrtolanError",
    "Seq2Seq",
    "__version__",
    "export",
    "load",
    "modeling",
    "runtime",
]

__version__ = "0.1.0"

_ROOMS = ("modeling", "export", "runtime")
_MODULES = {
    **dict.fromkeys(("Encoder", "Seq2Seq", "load"), "ortolan.runtime"),
    **dict.fromkeys(("Int4", "Int8"), "ortolan.export.precision"),
    "ExportOptions": "ortolan.export.options",
}
_missing = [name for name in _ROOMS if not (Path(__file__).parent / name).is_dir()]
if _missing:
    raise ImportError(
        f"ortolan: expected the folders {', '.join(_ROOMS)} beside this file, "
        f"missing {', '.join(_missing)}. This checkout has no symbolic links. "
        "Run `git config core.symlinks true` and `git checkout -- src`, or install a wheel."
    )
del _missing


def __getattr__(name: str) -> Any:
    """Import a room, or a name of one, when it is first used."""
    if name in _ROOMS:
        return import_module(f"ortolan.{name}")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'ortolan' has no attribute {name!r}")
