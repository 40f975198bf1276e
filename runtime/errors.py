"""Every error the runtime raises on purpose. Bases group them; `code` never changes."""

from typing import Any

from ortolan.errors import OrtolanError


class BundleError(OrtolanError):
    """A bundle on disk is broken or refused."""

    code = "bundle"


class BundleNotFoundError(BundleError):
    """There is no such folder, or it has no manifest.json."""

    code = "bundle-not-found"


class ManifestError(BundleError):
    """manifest.json is incomplete, is not JSON, or does not describe a bundle."""

    code = "manifest"


class BundleFileError(BundleError):
    """A listed file is missing, resized, altered or not a plain file. Names the file."""

    code = "bundle-file"


class GraphError(BundleError):
    """An ONNX graph does something a bundle may not do. Names the graph file."""

    code = "graph"


class FirstLoadError(BundleError):
    """The subprocess of a first load crashed or exceeded its limits."""

    code = "first-load"


class ChatTemplateError(BundleError):
    """A chat template is missing, broken, or needs too much time or memory."""

    code = "chat-template"


class AdapterError(OrtolanError):
    """An adapter is missing, damaged, or made for another bundle. Names the folder."""

    code = "adapter"


class DeviceError(OrtolanError):
    """A device is unknown, absent, or not one the bundle was exported for."""

    code = "device"


class InputError(OrtolanError):
    """A request is wrong: its prompt, ids or options."""

    code = "input"


class ChatError(InputError):
    """Messages or tools are wrong, or the chat template rejects them. Names the message."""

    code = "chat"


class BundleKindError(InputError):
    """The bundle cannot do this kind of request. Names what can."""

    code = "kind"


class ContextLengthError(InputError):
    """A request needs more tokens than the context of the bundle holds."""

    code = "context-length"


class GrammarError(InputError):
    """A grammar is invalid, too complex, or cannot be continued with this model's tokens."""

    code = "grammar"


class SamplingError(InputError):
    """An option of `Sampling` is out of range."""

    code = "sampling"


class TokenizerError(InputError):
    """The tokenizer cannot read this text or these ids, or the bundle has no tokenizer."""

    code = "tokenizer"


class StateFileError(OrtolanError):
    """A saved conversation is damaged, or of another bundle or version. Names the file."""

    code = "state-file"


class MemoryPlanError(OrtolanError, MemoryError):
    """A model or a request needs more memory than is available. States both figures."""

    code = "memory"


class ServiceError(OrtolanError):
    """The service cannot accept or complete a request. Says why."""

    code = "service"


class QueueFullError(ServiceError):
    """The queue is full.

    Attributes:
        retry_after_s: estimated seconds until a place is free, from the latest completions.
    """

    code = "queue-full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClosedError(ServiceError):
    """The service is closed to new requests."""

    code = "service-closed"


class ComputeError(OrtolanError):
    """onnxruntime could not compute the model: it is damaged, or memory is short."""

    code = "compute"


class NumericError(OrtolanError):
    """The model returned logits that are not finite. Names the step."""

    code = "numeric"


class CertificateError(OrtolanError):
    """A verification could not be carried out. A verification that fails raises nothing."""

    code = "certificate"


class ForkedError(OrtolanError):
    """A child process uses a model that was loaded before `os.fork()`."""

    code = "forked"


class MissingExtraError(OrtolanError, ImportError):
    """A package of an extra is not installed. Names the pip command."""

    code = "missing-extra"


def typed(error: Exception) -> OrtolanError:
    """The error of a request that could not be completed because of any exception."""
    if isinstance(error, OrtolanError):
        return error
    failure = ServiceError(
        f"The request failed with {type(error).__name__}: {error}. Send it again. If it fails "
        "again, report this bug."
    )
    failure.__cause__ = error
    return failure


def shown(value: Any) -> str:
    """Quote any value in an error, briefly."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or a class with a broken __repr__
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."
