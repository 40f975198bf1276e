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
from ortolan.runtime.errors import *  # noqa: F403

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle as Bundle
    from ortolan.runtime.bundle.folder import open_bundle as open_bundle
    from ortolan.runtime.bundle.manifest import Manifest as Manifest
    from ortolan.runtime.chat.call_syntax import ToolCall as ToolCall
    from ortolan.runtime.chat.conversation import Conversation as Conversation
    from ortolan.runtime.chat.parser import Piece as Piece
    from ortolan.runtime.chat.reply import Reply as Reply
    from ortolan.runtime.chat.reply import ReplyStream as ReplyStream
    from ortolan.runtime.decoder import Decoder as Decoder
    from ortolan.runtime.encoder import Encoder as Encoder
    from ortolan.runtime.encoding.answer import Answer as Answer
    from ortolan.runtime.encoding.call import EncoderCall as EncoderCall
    from ortolan.runtime.encoding.classification import Classification as Classification
    from ortolan.runtime.encoding.filling import Candidate as Candidate
    from ortolan.runtime.encoding.filling import Filling as Filling
    from ortolan.runtime.encoding.token_classification import LabeledSpan as LabeledSpan
    from ortolan.runtime.encoding.token_classification import (
        TokenClassification as TokenClassification,
    )
    from ortolan.runtime.engine.prefix_cache import PrefixCounts as PrefixCounts
    from ortolan.runtime.generation.completion import Completion as Completion
    from ortolan.runtime.generation.completion import Hypothesis as Hypothesis
    from ortolan.runtime.generation.completion import Timings as Timings
    from ortolan.runtime.generation.completion import TokenLogprobs as TokenLogprobs
    from ortolan.runtime.generation.drafts import DraftModel as DraftModel
    from ortolan.runtime.generation.drafts import MtpHead as MtpHead
    from ortolan.runtime.generation.drafts import PromptLookup as PromptLookup
    from ortolan.runtime.generation.grammar import Grammar as Grammar
    from ortolan.runtime.generation.sampling_options import Sampling as Sampling
    from ortolan.runtime.generation.session import Session as Session
    from ortolan.runtime.generation.text_stream import TextStream as TextStream
    from ortolan.runtime.inputs.tokenizer import Tokenizer as Tokenizer
    from ortolan.runtime.loading import load as load
    from ortolan.runtime.model import Model as Model
    from ortolan.runtime.seq2seq import Seq2Seq as Seq2Seq
    from ortolan.runtime.serving.encoder_service import EncoderService as EncoderService
    from ortolan.runtime.serving.seq2seq_service import Seq2SeqService as Seq2SeqService
    from ortolan.runtime.serving.service import Service as Service
    from ortolan.runtime.serving.stats import EncoderStats as EncoderStats
    from ortolan.runtime.serving.stats import ServiceStats as ServiceStats
    from ortolan.runtime.serving.ticket import Ticket as Ticket
    from ortolan.runtime.transcription.transcript import Segment as Segment
    from ortolan.runtime.transcription.transcript import Transcript as Transcript
    from ortolan.runtime.transcription.transcript import Word as Word
    from ortolan.runtime.verification.replay import verify as verify
    from ortolan.runtime.verification.report import Report as Report

_NAMES = {
    "bundle.bundle": "Bundle",
    "bundle.folder": "open_bundle",
    "bundle.manifest": "Manifest",
    "chat.call_syntax": "ToolCall",
    "chat.conversation": "Conversation",
    "chat.parser": "Piece",
    "chat.reply": "Reply ReplyStream",
    "decoder": "Decoder",
    "encoder": "Encoder",
    "encoding.answer": "Answer",
    "encoding.call": "EncoderCall",
    "encoding.classification": "Classification",
    "encoding.filling": "Candidate Filling",
    "encoding.token_classification": "LabeledSpan TokenClassification",
    "engine.prefix_cache": "PrefixCounts",
    "generation.completion": "Completion Hypothesis Timings TokenLogprobs",
    "generation.drafts": "DraftModel MtpHead PromptLookup",
    "generation.grammar": "Grammar",
    "generation.sampling_options": "Sampling",
    "generation.session": "Session",
    "generation.text_stream": "TextStream",
    "inputs.tokenizer": "Tokenizer",
    "loading": "load",
    "model": "Model",
    "seq2seq": "Seq2Seq",
    "serving.encoder_service": "EncoderService",
    "serving.seq2seq_service": "Seq2SeqService",
    "serving.service": "Service",
    "serving.stats": "EncoderStats ServiceStats",
    "serving.ticket": "Ticket",
    "transcription.transcript": "Segment Transcript Word",
    "verification.replay": "verify",
    "verification.report": "Report",
}
"""Public names by their modules, which are imported on first use."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted({*_HOMES, *(name for name in globals() if name.endswith("Error"))})

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
    raise MissingExtraError(  # noqa: F405
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
