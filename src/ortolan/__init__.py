"""Ortolan exports PyTorch transformers to ONNX and runs them anywhere.

    import ortolan

    bundle = ortolan.export("checkpoint/", "bundle/")  # needs ortolan[export]
    model = ortolan.load("bundle/")                    # needs ortolan[cpu]; or a name on the Hub
    print(model.generate("def main(", max_new_tokens=64).text)
    ortolan.load("translator/").generate("I live in Paris.", beams=4)
    ortolan.load("classifier/").classify(["a text", "another"])

`modeling`, `export` and `runtime` are imported on first use, so that a device that only runs
bundles does not need PyTorch. The distribution `ortolan-runtime` contains only `runtime`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ortolan.distribution import LEFT_OUT, is_runtime_only, missing_rooms
from ortolan.errors import OrtolanError as OrtolanError
from ortolan.errors import RuntimeOnlyError as RuntimeOnlyError

if TYPE_CHECKING:
    from ortolan import modeling as modeling
    from ortolan import runtime as runtime
    from ortolan.cache import CacheError as CacheError
    from ortolan.export.options import Auto as Auto
    from ortolan.export.options import ExportOptions as ExportOptions
    from ortolan.export.options import Int4 as Int4
    from ortolan.export.options import Int8 as Int8
    from ortolan.export.pipeline import export as export
    from ortolan.hub import HubError as HubError
    from ortolan.hub import RepositoryError as RepositoryError
    from ortolan.modeling.state import State as State
    from ortolan.runtime import AdapterError as AdapterError
    from ortolan.runtime import BundleError as BundleError
    from ortolan.runtime import ChatError as ChatError
    from ortolan.runtime import ChatTemplateError as ChatTemplateError
    from ortolan.runtime import Completion as Completion
    from ortolan.runtime import ContextLengthError as ContextLengthError
    from ortolan.runtime import Conversation as Conversation
    from ortolan.runtime import Decoder as Decoder
    from ortolan.runtime import DraftModel as DraftModel
    from ortolan.runtime import Encoder as Encoder
    from ortolan.runtime import Grammar as Grammar
    from ortolan.runtime import InputError as InputError
    from ortolan.runtime import MemoryPlanError as MemoryPlanError
    from ortolan.runtime import MissingExtraError as MissingExtraError
    from ortolan.runtime import MtpHead as MtpHead
    from ortolan.runtime import NumericError as NumericError
    from ortolan.runtime import PromptLookup as PromptLookup
    from ortolan.runtime import QueueFullError as QueueFullError
    from ortolan.runtime import Reply as Reply
    from ortolan.runtime import Sampling as Sampling
    from ortolan.runtime import SamplingError as SamplingError
    from ortolan.runtime import Seq2Seq as Seq2Seq
    from ortolan.runtime import Service as Service
    from ortolan.runtime import ServiceClosedError as ServiceClosedError
    from ortolan.runtime import ServiceError as ServiceError
    from ortolan.runtime import StateFileError as StateFileError
    from ortolan.runtime import Ticket as Ticket
    from ortolan.runtime import load as load

__version__ = "0.1.0"

_ROOMS = ("modeling", "export", "runtime")
_NAMES = {
    "cache": "CacheError",
    "errors": "OrtolanError RuntimeOnlyError",
    "export.options": "Auto ExportOptions Int4 Int8",
    "hub": "HubError RepositoryError",
    "modeling.state": "State",
    "runtime": (
        "AdapterError BundleError ChatError ChatTemplateError Completion "
        "ContextLengthError Conversation Decoder DraftModel Encoder Grammar InputError "
        "MemoryPlanError MissingExtraError MtpHead NumericError PromptLookup "
        "QueueFullError Reply Sampling SamplingError Seq2Seq Service ServiceClosedError "
        "ServiceError StateFileError Ticket load"
    ),
}
"""Public names by their modules, which are imported on first use."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted({*_HOMES, *_ROOMS, "__version__"})

if _missing := missing_rooms():
    raise ImportError(
        f"ortolan: the folders {', '.join(_missing)} are missing next to this file, because this "
        "checkout has no symbolic links. Run `git config core.symlinks true` and "
        "`git checkout -- src`, or install a wheel."
    )
del _missing


def __getattr__(name: str) -> Any:
    """Import a package, or a name from one, on first use."""
    home = name if name in _ROOMS else _HOMES.get(name, "")
    if home.split(".")[0] in LEFT_OUT and is_runtime_only():
        raise RuntimeOnlyError(f"ortolan.{name}", "export")
    if not home:
        raise AttributeError(f"module 'ortolan' has no attribute {name!r}")
    module = import_module(f"ortolan.{home}")
    return module if name in _ROOMS else getattr(module, name)
