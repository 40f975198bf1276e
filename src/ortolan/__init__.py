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
from ortolan.errors import OrtolanError, RuntimeOnlyError

if TYPE_CHECKING:
    from ortolan import modeling, runtime
    from ortolan.cache import CacheError
    from ortolan.export.options import Auto, ExportOptions, Int4, Int8
    from ortolan.export.pipeline import export
    from ortolan.hub.errors import HubError, RepositoryError
    from ortolan.modeling.state import State
    from ortolan.runtime import (
        BundleError,
        ChatError,
        ChatTemplateError,
        Completion,
        ContextLengthError,
        Conversation,
        Decoder,
        DraftModel,
        Encoder,
        Grammar,
        InputError,
        MemoryPlanError,
        MissingExtraError,
        MtpHead,
        NumericError,
        PromptLookup,
        QueueFullError,
        Reply,
        Sampling,
        SamplingError,
        Seq2Seq,
        Service,
        ServiceClosedError,
        ServiceError,
        StateFileError,
        Ticket,
        load,
    )

__all__ = [
    "AdapterError",
    "Auto",
    "BundleError",
    "CacheError",
    "ChatError",
    "ChatTemplateError",
    "Completion",
    "ContextLengthError",
    "Conversation",
    "Decoder",
    "DraftModel",
    "Encoder",
    "ExportOptions",
    "Grammar",
    "HubError",
    "InputError",
    "Int4",
    "Int8",
    "MemoryPlanError",
    "MissingExtraError",
    "MtpHead",
    "NumericError",
    "OrtolanError",
    "PromptLookup",
    "QueueFullError",
    "Reply",
    "RepositoryError",
    "RuntimeOnlyError",
    "Sampling",
    "SamplingError",
    "Seq2Seq",
    "Service",
    "ServiceClosedError",
    "ServiceError",
    "State",
    "StateFileError",
    "Ticket",
    "__version__",
    "export",
    "load",
    "modeling",
    "runtime",
]

__version__ = "0.1.0"

_ROOMS = ("modeling", "export", "runtime")
_ELSEWHERE = {
    "Auto": "ortolan.export.options",
    "CacheError": "ortolan.cache",
    "ExportOptions": "ortolan.export.options",
    "HubError": "ortolan.hub.errors",
    "Int4": "ortolan.export.options",
    "Int8": "ortolan.export.options",
    "RepositoryError": "ortolan.hub.errors",
    "State": "ortolan.modeling.state",
}
if _missing := missing_rooms():
    raise ImportError(
        f"ortolan: the folders {', '.join(_missing)} are missing next to this file, because this "
        "checkout has no symbolic links. Run `git config core.symlinks true` and "
        "`git checkout -- src`, or install a wheel."
    )
del _missing


def __getattr__(name: str) -> Any:
    """Import a package, or a name from one, on first use."""
    home = f"ortolan.{name}" if name in _ROOMS else _ELSEWHERE.get(name, "ortolan.runtime")
    if home.split(".")[1] in LEFT_OUT and is_runtime_only():
        raise RuntimeOnlyError(f"ortolan.{name}", "export")
    if name in _ROOMS:
        return import_module(home)
    if name in __all__:
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ortolan' has no attribute {name!r}")
