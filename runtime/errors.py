"""Errors of the runtime.

OrtolanError
├── BundleError                a bundle on disk is wrong
│   ├── BundleNotFoundError        no folder, or no manifest.json in it
│   ├── ManifestError              manifest.json is damaged, or of another schema
│   ├── BundleFileError            a listed file is missing, resized, altered or a link
│   ├── GraphError                 an ONNX graph breaks a rule for bundles
│   ├── UntrustedError             the bundle has operators that Ortolan does not write
│   ├── FirstLoadError             loading it crashed a subprocess, or exceeded its limits
│   └── ChatTemplateError          the chat template is missing, broken, or too expensive
├── DeviceError                device unknown, absent, or not one the bundle was made for
├── InputError                 a request is wrong: prompt, ids or options
│   ├── ChatError                  messages or tools are wrong, or the template rejects them
│   ├── BundleKindError            the bundle is of another kind than the request needs
│   ├── ContextLengthError         more tokens than the context of the bundle
│   ├── GrammarError               a grammar that cannot be followed
│   ├── SamplingError              an option of `Sampling` is out of range
│   └── TokenizerError             invalid text or ids, or no tokenizer
├── StateFileError             a saved session is damaged, or of another bundle or version
├── MemoryPlanError            not enough memory (also a `MemoryError`)
├── ServiceError               a service cannot accept or complete a request
│   ├── QueueFullError             the queue is full; says when to retry
│   └── ServiceClosedError         the service accepts no more requests
├── ComputeError               onnxruntime failed to run the model
├── NumericError               the model returned logits that are not finite
├── CertificateError           a verification could not be carried out
├── ForkedError                a model loaded before `os.fork()` was used in the child
└── MissingExtraError          a package of an extra is missing (also an `ImportError`)
"""

from typing import Any, ClassVar

from ortolan.errors import OrtolanError


class BundleError(OrtolanError):
    """A bundle on disk is wrong."""

    code: ClassVar[str] = "bundle"


class BundleNotFoundError(BundleError):
    """There is no folder, or the folder has no manifest.json."""

    code: ClassVar[str] = "bundle-not-found"


class ManifestError(BundleError):
    """manifest.json is damaged, is not JSON, or does not describe a bundle."""

    code: ClassVar[str] = "manifest"


class BundleFileError(BundleError):
    """A listed file is missing, resized, altered, or not a plain file. Names the file."""

    code: ClassVar[str] = "bundle-file"


class GraphError(BundleError):
    """An ONNX graph breaks a rule for bundles. Names the graph file."""

    code: ClassVar[str] = "graph"


class UntrustedError(BundleError):
    """A bundle has operators that Ortolan does not write, and its user does not trust it."""

    code: ClassVar[str] = "untrusted"


class FirstLoadError(BundleError):
    """The first load crashed its subprocess, or exceeded its limits."""

    code: ClassVar[str] = "first-load"


class ChatTemplateError(BundleError):
    """A chat template is missing, broken, or needs too much time or memory."""

    code: ClassVar[str] = "chat-template"


class DeviceError(OrtolanError):
    """A device is unknown, absent, or not one that the bundle was made for."""

    code: ClassVar[str] = "device"


class InputError(OrtolanError):
    """A request is wrong: its prompt, ids or options."""

    code: ClassVar[str] = "input"


class ChatError(InputError):
    """Messages or tools are wrong, or the chat template rejects them. Names the message."""

    code: ClassVar[str] = "chat"


class BundleKindError(InputError):
    """The bundle is of another kind than the request needs. Says how to use it."""

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
    """The text or ids are invalid for the tokenizer, or the bundle has none."""

    code: ClassVar[str] = "tokenizer"


class StateFileError(OrtolanError):
    """A saved session is damaged, or of another bundle or version. Names the file."""

    code: ClassVar[str] = "state-file"


class MemoryPlanError(OrtolanError, MemoryError):
    """A model or a request needs more memory than there is. Gives the figures."""

    code: ClassVar[str] = "memory"


class ServiceError(OrtolanError):
    """A service cannot accept or complete a request. Says why."""

    code: ClassVar[str] = "service"


class QueueFullError(ServiceError):
    """The queue is full.

    Attributes:
        retry_after_s: when to retry, in seconds, estimated from recently completed requests.
    """

    code: ClassVar[str] = "queue-full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClosedError(ServiceError):
    """A service accepts no more requests."""

    code: ClassVar[str] = "service-closed"


class ComputeError(OrtolanError):
    """onnxruntime failed to run the model: it is damaged, or memory is short."""

    code: ClassVar[str] = "compute"


class NumericError(OrtolanError):
    """The model returned logits that are not finite. Names the step."""

    code: ClassVar[str] = "numeric"


class CertificateError(OrtolanError):
    """A verification could not be carried out. (A failed verification is a verdict, not an error.)"""

    code: ClassVar[str] = "certificate"


class ForkedError(OrtolanError):
    """A model loaded before `os.fork()` was used in the child process."""

    code: ClassVar[str] = "forked"


class MissingExtraError(OrtolanError, ImportError):
    """A package of an extra is missing. Names the pip command that installs it."""

    code: ClassVar[str] = "missing-extra"


def shown(value: Any) -> str:
    """Quote a value for an error message, shortened."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or a class of the caller's
        return f"one of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."
