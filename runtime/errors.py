"""Every error that the runtime raises on purpose.

Functions say in their docstrings when they raise which.

OrtolanError
├── BundleError            something is wrong with a bundle on disk
│   ├── BundleNotFoundError    no folder, or no manifest.json in it
│   ├── ManifestError          torn, not JSON, wrong schema, unknown or missing field
│   ├── BundleFileError        a listed file is missing, resized, altered or a link
│   ├── GraphError             an ONNX graph does what a bundle may not do
│   ├── UntrustedError         it has operators that Ortolan does not write
│   ├── FirstLoadError         loading it ended a process of its own, or took too much
│   └── ChatTemplateError      a chat template is absent, broken, or asks for too much
├── DeviceError            device unknown, absent, or not one the bundle was made for
├── InputError             a request is wrong: prompt, ids or options
│   ├── ChatError              messages or tools are wrong, or the chat template refuses them
│   ├── BundleKindError        the bundle is of another kind than the request
│   ├── ContextLengthError     more tokens than the context of the bundle
│   ├── GrammarError           a grammar that cannot be followed
│   ├── SamplingError          an option of `Sampling` is out of range
│   └── TokenizerError         text or ids that the tokenizer cannot take, or no tokenizer
├── StateFileError         a saved conversation is damaged, or of another bundle or version
├── MemoryPlanError        there is not the memory (also a `MemoryError`)
├── ServiceError           a service cannot take a request, or not finish it
│   ├── QueueFullError         as many requests wait as may; says when to try again
│   └── ServiceClosedError     it takes no more requests
├── ComputeError           onnxruntime could not compute the model
├── NumericError           the model gave logits that are not finite
├── CertificateError       a verification could not be carried out
├── ForkedError            a session made before `os.fork()` was used in the child
└── MissingExtraError      a package of an extra is absent (also an `ImportError`)
"""

from typing import Any, ClassVar

from ortolan.errors import OrtolanError


class BundleError(OrtolanError):
    """Something is wrong with a bundle on disk."""

    code: ClassVar[str] = "bundle"


class BundleNotFoundError(BundleError):
    """There is no folder, or the folder has no manifest.json."""

    code: ClassVar[str] = "bundle-not-found"


class ManifestError(BundleError):
    """manifest.json is torn, is not JSON, or does not describe a bundle."""

    code: ClassVar[str] = "manifest"


class BundleFileError(BundleError):
    """A listed file is missing, resized, altered, or not a plain file. Names the file."""

    code: ClassVar[str] = "bundle-file"


class GraphError(BundleError):
    """An ONNX graph does what a bundle may not do. Names the graph file."""

    code: ClassVar[str] = "graph"


class UntrustedError(BundleError):
    """A bundle has operators that Ortolan does not write, and its user has not said to trust it."""

    code: ClassVar[str] = "untrusted"


class FirstLoadError(BundleError):
    """A first load in a process of its own ended that process, or took more than its limits."""

    code: ClassVar[str] = "first-load"


class ChatTemplateError(BundleError):
    """A chat template is absent, broken, or asks for too much time or memory."""

    code: ClassVar[str] = "chat-template"


class DeviceError(OrtolanError):
    """A device is unknown, absent, or not one the bundle was made for."""

    code: ClassVar[str] = "device"


class InputError(OrtolanError):
    """A request is wrong: its prompt, ids or options."""

    code: ClassVar[str] = "input"


class ChatError(InputError):
    """Messages or tools are wrong, or the chat template refuses them. Names the message."""

    code: ClassVar[str] = "chat"


class BundleKindError(InputError):
    """The bundle is of another kind than the request. Names what fits it."""

    code: ClassVar[str] = "kind"


class ContextLengthError(InputError):
    """A request needs more tokens than the context of the bundle."""

    code: ClassVar[str] = "context-length"


class GrammarError(InputError):
    """A grammar is invalid, too complex, or cannot be continued by this model's tokens."""

    code: ClassVar[str] = "grammar"


class SamplingError(InputError):
    """An option of `Sampling` is out of range."""

    code: ClassVar[str] = "sampling"


class TokenizerError(InputError):
    """The tokenizer cannot take this text or these ids, or the bundle has none."""

    code: ClassVar[str] = "tokenizer"


class StateFileError(OrtolanError):
    """A saved conversation is damaged, or of another bundle or version. Names the file."""

    code: ClassVar[str] = "state-file"


class MemoryPlanError(OrtolanError, MemoryError):
    """A model, or a request, needs more memory than there is. Gives the figures."""

    code: ClassVar[str] = "memory"


class ServiceError(OrtolanError):
    """A service cannot take a request, or not finish it: it has failed. Says why."""

    code: ClassVar[str] = "service"


class QueueFullError(ServiceError):
    """As many requests wait as may.

    Attributes:
        retry_after_s: seconds after which there may be room: those between the last texts' ends.
    """

    code: ClassVar[str] = "queue-full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClosedError(ServiceError):
    """A service takes no more requests."""

    code: ClassVar[str] = "service-closed"


class ComputeError(OrtolanError):
    """onnxruntime could not compute the model: it is damaged, or memory is short."""

    code: ClassVar[str] = "compute"


class NumericError(OrtolanError):
    """The model gave logits that are not finite. Names the step."""

    code: ClassVar[str] = "numeric"


class CertificateError(OrtolanError):
    """A verification could not be carried out; this is not a failed verification."""

    code: ClassVar[str] = "certificate"


class ForkedError(OrtolanError):
    """A session made before `os.fork()` was used in the child process."""

    code: ClassVar[str] = "forked"


class MissingExtraError(OrtolanError, ImportError):
    """A package of an extra is absent. Names the pip command that installs it."""

    code: ClassVar[str] = "missing-extra"


def shown(value: Any) -> str:
    """A value as an error quotes it: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # of an integer of thousands of digits, or of a class of the caller's
        return f"one of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."
