"""Calls of an encoder from inputs and options, checked before anything is computed."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_flag
from ortolan.runtime.bundle.kinds import ScoreFunction
from ortolan.runtime.bundle.labels import distinct, named_scores
from ortolan.runtime.bundle.manifest import Output, wrong_kind
from ortolan.runtime.encoding.answer import Answer, answered, checked_answer
from ortolan.runtime.encoding.call import EncoderCall, Row
from ortolan.runtime.encoding.classification import Classification, classification
from ortolan.runtime.encoding.filling import Filling, blanks_of, filled
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.encoding.token_classification import (
    Aggregation,
    TokenClassification,
    checked_aggregation,
    classified,
)
from ortolan.runtime.encoding.zero_shot import (
    IMAGE_TEMPLATE,
    TEMPLATE,
    check_multi_label,
    compared,
    entailed,
    entailment_of,
    pairs_of,
    sentences_of,
)
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.ids import SpannedIds, WindowIds
from ortolan.runtime.inputs.source import Inputs, SourceReader, as_list
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

EmbedTexts = Callable[[tuple[str, ...], bool], NDArray[np.float32]]
"""Embeds texts, `(texts, width)`; the flag cuts those that are too long."""

_WITH_YOUR_LABELS = "a classifier with an entailment label, or encoders of images and of texts"


class EncoderCalls:
    """Makes the calls of an encoder. Threads may share it.

    Methods have the arguments and errors of those of `Encoder`.
    """

    def __init__(
        self,
        engine: "Engine",
        reader: SourceReader,
        output: Output,
        embed_texts: EmbedTexts | None = None,
    ) -> None:
        self._embed_texts = embed_texts
        self._reader = reader
        self.rows = Rows(engine, reader, output)
        self._manifest = engine.manifest
        self._output = output
        self._labels = distinct(output.labels)

    def embed(
        self, inputs: Inputs, *, prompt: str | None, truncate: bool
    ) -> EncoderCall[NDArray[np.float32]]:
        """A vector for each input."""
        self._expect("embedding", what="embed", expected="an encoder of embeddings")
        items = self.rows.items(self._prompted(inputs, prompt), truncate=truncate)
        return EncoderCall(items, partial(_stacked, size=self._output.size))

    def classify(self, inputs: Inputs, *, truncate: bool) -> EncoderCall[list[Classification]]:
        """Scores of the labels for each input."""
        kind = self._manifest.output_kind
        function = kind.scores
        if function is None or kind.by_token:
            raise wrong_kind(self._manifest, what="classify", expected="an encoder with labels")
        items = self.rows.items(inputs, truncate=truncate)
        return EncoderCall(items, partial(_classified, function=function, labels=self._labels))

    def classify_as(
        self,
        inputs: Inputs,
        labels: Sequence[str],
        *,
        multi_label: bool,
        template: str | None,
        truncate: bool,
    ) -> EncoderCall[list[Classification]]:
        """Scores of labels that the caller chooses."""
        comparison = self._manifest.texts
        if comparison is not None and self._embed_texts is not None:
            check_multi_label(comparison, multi_label=multi_label)
            sentences = sentences_of(labels, IMAGE_TEMPLATE if template is None else template)
            texts_LW = self._embed_texts(tuple(sentences), checked_flag("truncate", truncate))
            compare = partial(
                compared, labels=tuple(labels), texts_LW=texts_LW, comparison=comparison
            )
            return EncoderCall(self.rows.items(inputs, truncate=False), compare)
        kind, entailment = self._manifest.output_kind, entailment_of(self._output.labels)
        if kind.scores != "softmax" or kind.by_token or entailment is None:
            raise wrong_kind(self._manifest, what="classify_as", expected=_WITH_YOUR_LABELS)
        pairs = pairs_of(inputs, labels, TEMPLATE if template is None else template)
        finish = partial(
            entailed, labels=tuple(labels), entailment=entailment, multi_label=multi_label
        )
        return EncoderCall(self.rows.items(pairs, truncate=truncate), finish)

    def classify_tokens(
        self, inputs: Inputs, *, aggregation: Aggregation, truncate: bool
    ) -> EncoderCall[list[TokenClassification]]:
        """Labels of the tokens of each text."""
        self._expect("token_labels", what="classify_tokens", expected="labels for each token")
        aggregation = checked_aggregation(aggregation)
        items = self.rows.items(inputs, truncate=truncate, spans=True)
        texts = [item.ids for item in items if isinstance(item.ids, SpannedIds)]

        def finish(rows: list[Row]) -> list[TokenClassification]:
            pairs = zip(rows, texts, strict=True)
            return [classified(row, ids, self._output.labels, aggregation) for row, ids in pairs]

        return EncoderCall(items, finish)

    def answer(
        self,
        question: str,
        context: str,
        *,
        max_answer_tokens: int,
        stride: int | None,
        allow_none: bool,
    ) -> EncoderCall[Answer]:
        """The part of a context that answers a question."""
        self._expect("spans", what="answer", expected="a model for question answering")
        checked_answer(question, context, max_answer_tokens=max_answer_tokens, stride=stride)
        allow_none = checked_flag("allow_none", allow_none)
        items = self.rows.windows(question, context, stride=stride)
        windows = [item.ids for item in items if isinstance(item.ids, WindowIds)]

        def finish(rows: list[Row]) -> Answer:
            return answered(
                rows,
                windows,
                context,
                max_answer_tokens=max_answer_tokens,
                allow_none=allow_none,
            )

        return EncoderCall(items, finish)

    def fill(self, text: str, tokenizer: Tokenizer | None, *, top: int) -> EncoderCall[Filling]:
        """The most probable tokens in the blanks of a text."""
        self._expect("logits", what="fill", expected="an encoder with a language model's head")
        if not isinstance(text, str):
            raise InputError(f"fill needs a text with a blank (got {shown(text)}).")
        if tokenizer is None:
            raise no_tokenizer("text")
        top = checked_count("top", top)
        items = self.rows.items(text, truncate=False)
        (ids,) = [item.ids for item in items if isinstance(item.ids, list)]
        places = blanks_of(ids, tokenizer)

        def finish(rows: list[Row]) -> Filling:
            return filled(rows[0], ids, places, tokenizer, top=top)

        return EncoderCall(items, finish)

    def states(self, inputs: Inputs, *, truncate: bool) -> EncoderCall[list[Row]]:
        """A vector for each token of each input."""
        self._expect("states", what="states", expected="an encoder without a head")
        return EncoderCall(self.rows.items(inputs, truncate=truncate), list)

    def logits(self, inputs: Inputs, *, truncate: bool) -> EncoderCall[list[Row]]:
        """Logits for each token of each input."""
        if self._output.kind not in ("logits", "ctc"):
            expected = "an encoder with a language model's head, or one of sounds with CTC"
            raise wrong_kind(self._manifest, what="logits", expected=expected)
        return EncoderCall(self.rows.items(inputs, truncate=truncate), list)

    def wave_logits(self, wave_N: NDArray[np.float32]) -> EncoderCall[Row]:
        """Logits of a wave that was read, `(vectors, symbols)`."""
        return EncoderCall([self.rows.item(wave_N, 0, is_alone=True)], itemgetter(0))

    def _expect(self, kind: str, *, what: str, expected: str) -> None:
        if self._output.kind != kind:
            raise wrong_kind(self._manifest, what=what, expected=expected)

    def _prompted(self, inputs: Inputs, name: str | None) -> Inputs:
        """Put a prompt of the model before each text."""
        if name is not None and not isinstance(name, str):
            raise InputError(f"prompt must be the name of a prompt (got {shown(name)}).")
        prompts = self._reader.prompts
        chosen = self._reader.default_prompt if name is None else name
        if not chosen:
            return inputs
        if chosen not in prompts:
            names = ", ".join(map(repr, sorted(prompts))) or "none"
            raise InputError(
                f"The model has no prompt {chosen[:40]!r}. Its prompts: {names}. "
                "Put any other text before the input yourself."
            )
        batch = as_list(inputs)
        if name and not all(isinstance(item, str) for item in batch):
            raise InputError(
                "prompt applies to text, not to token ids. Leave it out, or pass text."
            )
        return [prompts[chosen] + item if isinstance(item, str) else item for item in batch]


def _stacked(rows: list[Row], *, size: int) -> NDArray[np.float32]:
    return np.stack(rows) if rows else np.empty((0, size), np.float32)


def _classified(
    rows: list[Row], *, function: ScoreFunction, labels: list[str]
) -> list[Classification]:
    are_probabilities = function != "none"
    return [
        classification(named_scores(row, function, labels), are_probabilities=are_probabilities)
        for row in rows
    ]
