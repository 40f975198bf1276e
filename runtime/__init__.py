"""Runs bundles with NumPy and onnxruntime, without PyTorch.

    from ortolan.runtime import Sampling, load

    model = load("bundle/")  # a Decoder, a Seq2Seq or an Encoder
    print(model.generate("def main(", max_new_tokens=64).text)
    for piece in model.stream("def main(", sampling=Sampling(temperature=0.8, top_p=0.95)):
        print(piece, end="", flush=True)
    load("translator/").generate("I live in Paris.", beams=4)
    load("encoder/").classify(["a text", "another"])
    print(load("whisper/").transcribe("talk.mp3").text)

Importing this package is cheap: NumPy, onnxruntime and the names below are imported on first use.
It raises `MissingExtraError` if onnxruntime is not installed, and disables onnxruntime's
telemetry, which must happen before onnxruntime is imported.
"""

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ortolan.distribution import pip_install
from ortolan.runtime.errors import (
    AdapterError,
    BundleError,
    BundleFileError,
    BundleKindError,
    BundleNotFoundError,
    CertificateError,
    ChatError,
    ChatTemplateError,
    ContextLengthError,
    DeviceError,
    FirstLoadError,
    ForkedError,
    GrammarError,
    GraphError,
    InputError,
    ManifestError,
    MemoryPlanError,
    MissingExtraError,
    NumericError,
    QueueFullError,
    SamplingError,
    ServiceClosedError,
    ServiceError,
    StateFileError,
    TokenizerError,
    UntrustedError,
)

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle
    from ortolan.runtime.bundle.folder import open_bundle
    from ortolan.runtime.bundle.manifest import Manifest
    from ortolan.runtime.chat.call_syntax import ToolCall
    from ortolan.runtime.chat.conversation import Conversation
    from ortolan.runtime.chat.reply import Reply, ReplyStream
    from ortolan.runtime.decoder import Decoder
    from ortolan.runtime.encoder import Encoder
    from ortolan.runtime.encoding.answer import Answer
    from ortolan.runtime.encoding.classification import Classification
    from ortolan.runtime.encoding.filling import Candidate, Filling
    from ortolan.runtime.encoding.token_classification import LabeledSpan, TokenClassification
    from ortolan.runtime.engine.prefix_cache import PrefixCounts
    from ortolan.runtime.generation.completion import (
        Completion,
        Hypothesis,
        Timings,
        TokenLogprobs,
    )
    from ortolan.runtime.generation.drafts import DraftModel, MtpHead, PromptLookup
    from ortolan.runtime.generation.grammar import Grammar
    from ortolan.runtime.generation.sampling_options import Sampling
    from ortolan.runtime.generation.session import Session
    from ortolan.runtime.generation.text_stream import TextStream
    from ortolan.runtime.inputs.tokenizer import Tokenizer
    from ortolan.runtime.loading import load
    from ortolan.runtime.model import Model
    from ortolan.runtime.seq2seq import Seq2Seq
    from ortolan.runtime.serving.chat_ticket import ChatTicket
    from ortolan.runtime.serving.encoder_service import EncoderService, EncoderStats
    from ortolan.runtime.serving.encoder_ticket import EncoderTicket
    from ortolan.runtime.serving.seq2seq_service import Seq2SeqService
    from ortolan.runtime.serving.service import Service
    from ortolan.runtime.serving.stats import ServiceStats
    from ortolan.runtime.serving.ticket import TextPiece, Ticket
    from ortolan.runtime.transcription.transcript import Segment, Transcript, Word
    from ortolan.runtime.verification.replay import verify
    from ortolan.runtime.verification.report import Report

__all__ = [
    "AdapterError",
    "Answer",
    "Bundle",
    "BundleError",
    "BundleFileError",
    "BundleKindError",
    "BundleNotFoundError",
    "Candidate",
    "CertificateError",
    "ChatError",
    "ChatTemplateError",
    "ChatTicket",
    "Classification",
    "Completion",
    "ContextLengthError",
    "Conversation",
    "Decoder",
    "DeviceError",
    "DraftModel",
    "Encoder",
    "EncoderService",
    "EncoderStats",
    "EncoderTicket",
    "Filling",
    "FirstLoadError",
    "ForkedError",
    "Grammar",
    "GrammarError",
    "GraphError",
    "Hypothesis",
    "InputError",
    "LabeledSpan",
    "Manifest",
    "ManifestError",
    "MemoryPlanError",
    "MissingExtraError",
    "Model",
    "MtpHead",
    "NumericError",
    "PrefixCounts",
    "PromptLookup",
    "QueueFullError",
    "Reply",
    "ReplyStream",
    "Report",
    "Sampling",
    "SamplingError",
    "Segment",
    "Seq2Seq",
    "Seq2SeqService",
    "Service",
    "ServiceClosedError",
    "ServiceError",
    "ServiceStats",
    "Session",
    "StateFileError",
    "TextPiece",
    "TextStream",
    "Ticket",
    "Timings",
    "TokenClassification",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "Transcript",
    "UntrustedError",
    "Word",
    "load",
    "open_bundle",
    "verify",
]

_HOMES = {
    "Answer": "encoding.answer",
    "Bundle": "bundle.bundle",
    "Candidate": "encoding.filling",
    "ChatTicket": "serving.chat_ticket",
    "Classification": "encoding.classification",
    "Completion": "generation.completion",
    "Conversation": "chat.conversation",
    "Decoder": "decoder",
    "DraftModel": "generation.drafts",
    "Encoder": "encoder",
    "EncoderService": "serving.encoder_service",
    "EncoderStats": "serving.encoder_service",
    "EncoderTicket": "serving.encoder_ticket",
    "Filling": "encoding.filling",
    "Grammar": "generation.grammar",
    "Hypothesis": "generation.completion",
    "LabeledSpan": "encoding.token_classification",
    "Manifest": "bundle.manifest",
    "Model": "model",
    "PrefixCounts": "engine.prefix_cache",
    "MtpHead": "generation.drafts",
    "PromptLookup": "generation.drafts",
    "Reply": "chat.reply",
    "ReplyStream": "chat.reply",
    "Report": "verification.report",
    "Sampling": "generation.sampling",
    "Segment": "transcription.transcript",
    "Seq2Seq": "seq2seq",
    "Seq2SeqService": "serving.seq2seq_service",
    "Service": "serving.service",
    "ServiceStats": "serving.stats",
    "Session": "generation.session",
    "TextPiece": "serving.ticket",
    "TextStream": "generation.text_stream",
    "Ticket": "serving.ticket",
    "Timings": "generation.completion",
    "TokenClassification": "encoding.token_classification",
    "TokenLogprobs": "generation.completion",
    "Tokenizer": "inputs.tokenizer",
    "ToolCall": "chat.call_syntax",
    "Transcript": "transcription.transcript",
    "Word": "transcription.transcript",
    "load": "loading",
    "open_bundle": "bundle.folder",
    "verify": "verification.replay",
}
"""Modules of the public names that are imported on first use."""

_TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"


def _switch_telemetry_off() -> None:
    """Set the switch, unless the user has set it to any value."""
    if _TELEMETRY_SWITCH in os.environ:
        return
    os.environ[_TELEMETRY_SWITCH] = "1"
    if "onnxruntime" in sys.modules:
        warnings.warn(
            "onnxruntime was imported before ortolan.runtime and may send telemetry. Import "
            f"ortolan.runtime first, or set {_TELEMETRY_SWITCH}=1 in the environment.",
            RuntimeWarning,
            stacklevel=3,
        )


_switch_telemetry_off()

if find_spec("onnxruntime") is None:
    raise MissingExtraError(
        f"ortolan.runtime needs onnxruntime, which is not installed. Run: {pip_install('cpu')}"
    )


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return [*globals(), *(name for name in __all__ if name not in globals())]
