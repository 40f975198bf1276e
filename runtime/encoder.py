"""`Encoder`: turns text or images into vectors or labels."""

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
"""Maximum number of inputs per call of the graph; more do not use the cores better."""

MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens, padding included, in a batch of several texts, to bound memory."""

MIN_BATCH_SHARE = 0.75
"""Minimum length of the shortest text of a batch, relative to the longest, to bound padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Scores of the labels for a text or an image.

    `manifest.output_kind.scores` says what the scores are: probabilities that add up to 1
    (`softmax`), an independent probability per label (`sigmoid`), or values that the model was
    trained to predict (`none`), such as a number of stars.

    Attributes:
        label: with the highest score.
        score: of that label.
        scores: of all labels, highest first.
        are_probabilities: whether scores are between 0 and 1.
    """

    label: str
    score: float
    scores: dict[str, float]
    are_probabilities: bool = True

    @property
    def probability(self) -> float:
        """The score. Raises BundleKindError if it is not a probability."""
        return next(iter(self.probabilities.values()))

    @property
    def probabilities(self) -> dict[str, float]:
        """The scores. Raises BundleKindError if they are not probabilities."""
        if not self.are_probabilities:
            raise BundleKindError(
                "The scores of this model are not probabilities. Use score or scores."
            )
        return self.scores


class Encoder(Model):
    """A loaded encoder of text or images.

        load("embedder/").embed(["a text", "another"])  # float32 (2, width)
        load("classifier/").classify("a text")[0].label

    An input is text or token ids; for an image encoder, the path of a file, its bytes, or uint8
    pixels (`ortolan.runtime.inputs.images.read_pixels`). The tokenizer adds special tokens to
    text, but not to ids.

    Inputs of similar length are computed together. Each result equals that of the input alone up
    to rounding; with int8 activations, up to their quantization error.
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
            inputs: one input or a list.
            prompt: name of a prompt of the model (`manifest.source.prompts`) to put before each
                text. `None` uses the model's default prompt, if it has one; `""` uses none. Ids get
                no prompt.
            truncate: cut texts that are too long, at the end.

        Returns:
            float32 `(inputs, width)`, of length 1 if the model normalizes them.

        Raises:
            BundleKindError: the encoder does not return one vector per input.
            ContextLengthError: a text is too long.
            InputError: an input is empty or of the wrong kind, or there is no such prompt.
            NumericError: the output is not finite.
            ForkedError: the process was forked after loading.
        """
        self._expect("embedding", what="embed", expected="an encoder of embeddings")
        rows = self._run(self._prompted(inputs, prompt), truncate=truncate)
        return np.stack(rows) if rows else np.empty((0, self._output.size), np.float32)

    def classify(self, inputs: Inputs, *, truncate: bool = False) -> list[Classification]:
        """Score the labels of each input, as transformers' pipelines do.

        Same arguments and errors as `embed`. Raises BundleKindError if the encoder has no labels.
        """
        function = self.manifest.output_kind.scores
        if function is None:
            raise wrong_kind(self.manifest, what="classify", expected="an encoder with labels")
        classifications = []
        for row in self._run(inputs, truncate=truncate):
            scores = named_scores(row, function, self._labels)
            label, score = next(iter(scores.items()))
            classifications.append(
                Classification(
                    label=label,
                    score=score,
                    scores=scores,
                    are_probabilities=function != "none",
                )
            )
        return classifications

    def states(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute a vector for each token of each input. Same arguments and errors as `embed`.

        Returns:
            float32 `(tokens, width)` per input. The tokens of an image are its patches, after the
            model's class token, if it has one.
        """
        self._expect("states", what="states", expected="an encoder without a head")
        return self._run(inputs, truncate=truncate)

    def logits(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute logits for each token of each input. Same arguments and errors as `embed`.

        Returns:
            float32 `(tokens, vocab)` per input.
        """
        self._expect("logits", what="logits", expected="an encoder with a language model's head")
        return self._run(inputs, truncate=truncate)

    def _prompted(self, inputs: Inputs, name: str | None) -> Inputs:
        """Put a prompt of the model before each text."""
        if name is not None and not isinstance(name, str):
            raise InputError(f"prompt must be the name of a prompt (got {shown(name)}).")
        source = self.manifest.source
        prompts = source.prompts if isinstance(source, TextSource) else {}
        chosen = name
        if name is None and isinstance(source, TextSource):
            chosen = source.default_prompt
        if not chosen:
            return inputs
        if chosen not in prompts:
            names = ", ".join(map(repr, sorted(prompts))) or "none"
            raise InputError(
                f"The model has no prompt {chosen[:40]!r}. Its prompts: {names}. "
                "Put any other text before the input yourself."
            )
        batch = _as_list(inputs)
        if name and not all(isinstance(item, str) for item in batch):
            raise InputError(
                "prompt applies to text, not to token ids. Leave it out, or pass text."
            )
        return [prompts[chosen] + item if isinstance(item, str) else item for item in batch]

    def _expect(self, kind: str, *, what: str, expected: str) -> None:
        if self._output.kind != kind:
            raise wrong_kind(self.manifest, what=what, expected=expected)

    def _run(self, inputs: Inputs, *, truncate: bool) -> list[NDArray[np.float32]]:
        """The output of each input, without padding, in the order of the inputs."""
        batch = _as_list(inputs)
        image = self.manifest.source if isinstance(self.manifest.source, ImageSource) else None
        texts = [] if image else [self._read(batch, at, truncate) for at in range(len(batch))]
        lengths = [_tokens(image)] * len(batch) if image else [len(text) for text in texts]
        results: dict[int, NDArray[np.float32]] = {}
        for indices in batches(lengths):
            # images are decoded here: their pixels need far more memory than their files
            sources = [self._read(batch, at, truncate) if image else texts[at] for at in indices]
            output = self._engine.encode(self._reader.feeds(sources))[OUTPUT]
            self._check_shape(output.shape, len(indices))
            for index, source, row in zip(indices, sources, output, strict=True):
                results[index] = _checked(row, source, index)
        return [results[index] for index in range(len(batch))]

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        """Check the output: onnxruntime only warns if it differs from the declared shape."""
        axes = 3 if self.manifest.output_kind.by_token else 2
        if (len(shape), shape[0], shape[-1]) != (axes, rows, self._output.size):
            raise GraphError(
                f"The encoder returned an array {shape} for {rows} inputs. The manifest declares "
                f"{self._output.size} values of {self._output.kind}. Export the checkpoint again."
            )

    def _read(self, batch: Sequence[Any], index: int, truncate: bool) -> Source:
        try:
            return self._reader.read(batch[index], truncate=truncate)
        except InputError as error:
            if len(batch) == 1:
                raise
            raise type(error)(f"input {index}: {error}") from error


def _as_list(inputs: Any) -> list[Any]:
    return list(inputs) if is_batch(inputs) else [inputs]


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group the indices of inputs into batches of similar length.

    Padding costs as much as text, and a call of the graph costs little, so a new batch begins where
    the texts get much shorter.
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
    """Approximate number of tokens of an image, for patches of 8 by 8 pixels."""
    return max(1, image.height * image.width // 64)


def _checked(row: NDArray[np.float32], source: Source, index: int) -> NDArray[np.float32]:
    """One row of an output without its padding."""
    if row.ndim == 2 and isinstance(source, list):
        row = row[: len(source)]
    if not np.isfinite(row).all():
        raise NumericError(
            f"input {index}: the output is not finite. Run `ortolan verify` on the bundle."
        )
    return row
