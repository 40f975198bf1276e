"""Every error the runtime raises on purpose. Bases group them; `code` never changes."""

from typing import Any

from ortolan.errors import OrtolanError


class BundleError(OrtolanError, code="bundle"):
    """A bundle on disk is broken or refused."""


class BundleNotFoundError(BundleError, code="bundle-not-found"):
    """There is no such folder, or it has no manifest.json."""


class ManifestError(BundleError, code="manifest"):
    """manifest.json is incomplete, is not JSON, or does not describe a bundle."""


class BundleFileError(BundleError, code="bundle-file"):
    """A listed file is missing, resized, altered or not a plain file. Names the file."""


class GraphError(BundleError, code="graph"):
    """An ONNX graph does something a bundle may not do. Names the graph file."""


class FirstLoadError(BundleError, code="first-load"):
    """The subprocess of a first load crashed or exceeded its limits."""


class ChatTemplateError(BundleError, code="chat-template"):
    """A chat template is missing, broken, or needs too much time or memory."""


class AdapterError(OrtolanError, code="adapter"):
    """An adapter is missing, damaged, or made for another bundle. Names the folder."""


class DeviceError(OrtolanError, code="device"):
    """A device is unknown, absent, or not one the bundle was exported for."""


class InputError(OrtolanError, code="input"):
    """A request is wrong: its prompt, ids or options."""


class ChatError(InputError, code="chat"):
    """Messages or tools are wrong, or the chat template rejects them. Names the message."""


class BundleKindError(InputError, code="kind"):
    """The bundle cannot do this kind of request. Names what can."""


class ContextLengthError(InputError, code="context-length"):
    """A request needs more tokens than the context of the bundle holds."""


class GrammarError(InputError, code="grammar"):
    """A grammar is invalid, too complex, or cannot be continued with this model's tokens."""


class SamplingError(InputError, code="sampling"):
    """An option of `Sampling` is out of range."""


class TokenizerError(InputError, code="tokenizer"):
    """The tokenizer cannot read this text or these ids, or the bundle has no tokenizer."""


class StateFileError(OrtolanError, code="state-file"):
    """A saved conversation is damaged, or of another bundle or version. Names the file."""


class MemoryPlanError(OrtolanError, MemoryError, code="memory"):
    """A model or a request needs more memory than is available. States both figures."""


class ServiceError(OrtolanError, code="service"):
    """The service cannot accept or complete a request. Says why."""


class QueueFullError(ServiceError, code="queue-full"):
    """The queue is full.

    Attributes:
        retry_after_s: estimated seconds until a place is free, from the latest completions.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClosedError(ServiceError, code="service-closed"):
    """The service is closed to new requests."""


class ComputeError(OrtolanError, code="compute"):
    """onnxruntime could not compute the model: it is damaged, or memory is short."""


class NumericError(OrtolanError, code="numeric"):
    """The model returned logits that are not finite. Names the step."""


class CertificateError(OrtolanError, code="certificate"):
    """A verification could not be carried out. A verification that fails raises nothing."""


class ForkedError(OrtolanError, code="forked"):
    """A child process uses a model that was loaded before `os.fork()`."""


class MissingExtraError(OrtolanError, ImportError, code="missing-extra"):
    """A package of an extra is not installed. Names the pip command."""


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
