"""An encoder: texts, ids or images in; vectors or labels out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.labels import distinct, named_scores
from ortolan.runtime.bundle.manifest import ImageSource, TextSource, wrong_kind
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import BundleKindError, GraphError, InputError, NumericError, shown
from ortolan.runtime.inputs.source import Inputs, Source, SourceReader, is_batch
from ortolan.runtime.model import Model

__all__ = ["Classification", "Encoder"]

MAX_BATCH_ROWS = 32
"""Most inputs of one call of the graph; more fill no core better."""

MAX_BATCH_TOKENS = 4096
"""Most tokens of one call, padding included, of more than one text: it bounds the memory."""

MIN_BATCH_SHARE = 0.75
"""The shortest text of a batch is at least this long beside the longest: the rest is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a text or an image is.

    The manifest says what the scores are (`manifest.output_kind.scores`): probabilities that add
    up to 1 (`softmax`), a probability for each label on its own (`sigmoid`), or whatever the model
    was trained to predict (`none`), such as a number of stars.

    Attributes:
        label: the one with the highest score.
        score: of that label.
        scores: of every label, the highest first.
        are_probabilities: whether the scores are between 0 and 1.
    """

    label: str
    score: float
    scores: dict[str, float]
    are_probabilities: bool = True

    @property
    def probability(self) -> float:
        """The score, where it is a probability.

        Raises:
            BundleKindError: it is not.
        """
        return next(iter(self.probabilities.values()))

    @property
    def probabilities(self) -> dict[str, float]:
        """The scores, where they are probabilities.

        Raises:
            BundleKindError: they are not.
        """
        if not self.are_probabilities:
            raise BundleKindError(
                "probabilities: this model returns scores, which are no probabilities. Use score "
                "or scores."
            )
        return self.scores


class Encoder(Model):
    """A bundle that encodes texts or images.

    Inputs of similar length are computed together; each result is what the input gives alone, up
    to rounding; with products of 8-bit integers, up to the error of 8-bit activations.

    An input is a text, or its token ids; where the encoder takes images, the path of a file, its
    contents, or uint8 pixels (see `ortolan.runtime.inputs.images.read_pixels`). Ids are taken as
    they are; a text gets the special tokens of its tokenizer.
    """

    kind = "encoder"

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        output = bundle.manifest.output
        if output is None:
            raise wrong_kind(bundle.manifest, what="Encoder", expected="an encoder")
        self._output = output
        self._labels = distinct(output.labels)
        self._reader = SourceReader(bundle.manifest, self.tokenizer)

    def embed(
        self, inputs: Inputs, *, prompt: str | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Compute a vector for each input.

        Args:
            inputs: one, or a list of them.
            prompt: the name of a prompt of the model (`manifest.source.prompts`), which goes before
                each text; by default the model's default one, if it has one, and `""` for none.
                Ids have no room for a prompt and take none by default.
            truncate: cut texts that are over the limit, at the end.

        Returns:
            float32 `(inputs, width)`, of length 1 where the model norms them.

        Raises:
            BundleKindError: the encoder gives something else, such as a vector for each token;
                which of these to take, or their mean, is not decided here.
            ContextLengthError: a text is over the limit.
            InputError: an input is empty, or not what the encoder takes; the model has no such
                prompt, or it cannot go before ids.
            NumericError: the encoder gave numbers that are not finite.
            ForkedError: the process was forked after the encoder was loaded.
        """
        self._expect("embedding", what="embed", expected="an encoder that gives embeddings")
        rows = self._run(self._prompted(inputs, prompt), truncate=truncate)
        return np.stack(rows) if rows else np.empty((0, self._output.size), np.float32)

    def classify(self, inputs: Inputs, *, truncate: bool = False) -> list[Classification]:
        """Score the labels of each input.

        Scores are those of transformers' pipelines: what the checkpoint says is applied to the
        logits, a softmax, a sigmoid or nothing.

        Args:
            inputs: one, or a list of them.
            truncate: cut texts that are over the limit, at the end.

        Raises:
            BundleKindError: the encoder has no labels.
            ContextLengthError: as for `embed`.
            InputError: as for `embed`.
            NumericError: as for `embed`.
            ForkedError: as for `embed`.
        """
        function = self.manifest.output_kind.scores
        if function is None:
            expected = "an encoder that gives labels"
            raise wrong_kind(self.manifest, what="classify", expected=expected)
        found = []
        for row in self._run(inputs, truncate=truncate):
            scores = named_scores(row, function, self._labels)
            label, score = next(iter(scores.items()))
            found.append(
                Classification(
                    label=label,
                    score=score,
                    scores=scores,
                    are_probabilities=function != "none",
                )
            )
        return found

    def states(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute a vector for each token of each input.

        Args:
            inputs: one, or a list of them.
            truncate: cut texts that are over the limit, at the end.

        Returns:
            float32 `(tokens, width)` for each; the tokens of an image are its patches, after
            the model's own token where it has one.

        Raises:
            BundleKindError: the encoder gives something else.
            ContextLengthError: as for `embed`.
            InputError: as for `embed`.
            NumericError: as for `embed`.
            ForkedError: as for `embed`.
        """
        self._expect("states", what="states", expected="an encoder without a head")
        return self._run(inputs, truncate=truncate)

    def logits(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute the logits of the vocabulary for each token of each input.

        Args:
            inputs: one, or a list of them.
            truncate: cut texts that are over the limit, at the end.

        Returns:
            float32 `(tokens, vocab)` for each.

        Raises:
            BundleKindError: the encoder has no head of a language model.
            ContextLengthError: as for `embed`.
            InputError: as for `embed`.
            NumericError: as for `embed`.
            ForkedError: as for `embed`.
        """
        self._expect("logits", what="logits", expected="an encoder with a language model's head")
        return self._run(inputs, truncate=truncate)

    def _prompted(self, inputs: Inputs, name: str | None) -> Inputs:
        """Texts after a prompt of the model."""
        if name is not None and not isinstance(name, str):
            raise InputError(f"prompt: expected the name of a prompt, got {shown(name)}.")
        source = self.manifest.source
        prompts = source.prompts if isinstance(source, TextSource) else {}
        chosen = name
        if name is None and isinstance(source, TextSource):
            chosen = source.default_prompt
        if not chosen:
            return inputs
        if chosen not in prompts:
            known = ", ".join(map(repr, sorted(prompts))) or "none, since the model has none"
            raise InputError(
                f"prompt: expected {known}, got {chosen[:40]!r}. "
                "Put other texts before the input yourself."
            )
        given: list[Any] = list(inputs) if is_batch(inputs) else [inputs]  # type: ignore[arg-type]
        if name and not all(isinstance(one, str) for one in given):
            raise InputError(
                f"prompt: expected texts to put {chosen!r:.40} before, got ids. Leave it out, or "
                "give the text."
            )
        return [prompts[chosen] + one if isinstance(one, str) else one for one in given]

    def _expect(self, kind: str, *, what: str, expected: str) -> None:
        if self._output.kind != kind:
            raise wrong_kind(self.manifest, what=what, expected=expected)

    def _run(self, inputs: Inputs, *, truncate: bool) -> list[NDArray[np.float32]]:
        """The output of each input, without padding, in the order of the inputs."""
        given: list[Any] = list(inputs) if is_batch(inputs) else [inputs]  # type: ignore[arg-type]
        image = self.manifest.source if isinstance(self.manifest.source, ImageSource) else None
        texts = [] if image else [self._read(given, at, truncate) for at in range(len(given))]
        lengths = [_tokens(image)] * len(given) if image else [len(text) for text in texts]
        results: dict[int, NDArray[np.float32]] = {}
        for batch in batches(lengths):
            # images only now: pixels in floating point take far more memory than their files
            sources = [self._read(given, at, truncate) if image else texts[at] for at in batch]
            output = self._engine.encode(self._reader.feeds(sources))[OUTPUT]
            self._check_shape(output.shape, len(batch))
            for index, source, row in zip(batch, sources, output, strict=True):
                results[index] = _checked(row, source, index)
        return [results[index] for index in range(len(given))]

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        """Graphs say what they give, and onnxruntime only warns when they give something else."""
        axes = 3 if self.manifest.output_kind.by_token else 2
        if (len(shape), shape[0], shape[-1]) != (axes, rows, self._output.size):
            raise GraphError(
                f"encoder: expected {self._output.kind} of {rows} inputs and {self._output.size} "
                f"numbers, got an array {shape}. Export the checkpoint again."
            )

    def _read(self, given: Sequence[Any], index: int, truncate: bool) -> Source:
        try:
            return self._reader.read(given[index], truncate=truncate)
        except InputError as error:
            if len(given) == 1:
                raise
            raise type(error)(f"input {index}: {error}") from error


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of inputs to compute together: of similar length, and not too many.

    Padding costs as much as text, and a call of the graph little: so a new batch begins where
    the texts get much shorter. Every index is in one batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        longest = lengths[batch[0]] if batch else 0
        is_full = (
            len(batch) == MAX_BATCH_ROWS
            or (len(batch) + 1) * longest > MAX_BATCH_TOKENS
            or lengths[index] < MIN_BATCH_SHARE * longest
        )
        if batch and is_full:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _tokens(image: ImageSource) -> int:
    """About as many tokens as an image becomes, with small patches of 8 by 8 pixels."""
    return max(1, image.height * image.width // 64)


def _checked(row: NDArray[np.float32], source: Source, index: int) -> NDArray[np.float32]:
    """One row of an output without its padding."""
    if row.ndim == 2 and isinstance(source, list):
        row = row[: len(source)]
    if not np.isfinite(row).all():
        raise NumericError(
            f"input {index}: expected finite numbers of the encoder, got others. "
            "Run `ortolan verify` on the bundle."
        )
    return row
