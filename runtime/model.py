"""A loaded bundle: text or ids in, text, ids or logits out.

Knows how requests are written and checks them. Does not know how tokens are computed: that is
`ortolan.runtime.generation.generate` and `ortolan.runtime.engine.runner`.
"""

import os
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.engine.memory_plan import RequestMemory, check_load
from ortolan.runtime.engine.runner import chunks, feed
from ortolan.runtime.engine.session import Engine, onnxruntime_version
from ortolan.runtime.errors import (
    ContextLengthError,
    InputError,
    NumericError,
)
from ortolan.runtime.generation import sequence
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.generate import Completer, Completion, Request, TextStream
from ortolan.runtime.generation.request import (
    Cancel,
    asked,
    checked_count,
    no_tokenizer,
    open_tokenizer,
    sampling_of,
)
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.seq2seq import Seq2Seq

__all__ = ["Model", "Prompt", "load"]

MAX_PROMPTS = 256
"""Prompts of one call; each takes a cache of its own."""

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text, or token ids."""

Prompts = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[np.integer[Any]]]
"""Several prompts, of any lengths."""


@overload
def load(
    path: str | os.PathLike[str],
    kind: type["Model"] = ...,
    *,
    device: str = "auto",
    threads: int | None = None,
    full_check: bool = False,
) -> "Model": ...


@overload
def load(
    path: str | os.PathLike[str],
    kind: type[Seq2Seq],
    *,
    device: str = "auto",
    threads: int | None = None,
    full_check: bool = False,
) -> Seq2Seq: ...


@overload
def load(
    path: str | os.PathLike[str],
    kind: type[Encoder],
    *,
    device: str = "auto",
    threads: int | None = None,
    full_check: bool = False,
) -> Encoder: ...


def load(
    path: str | os.PathLike[str],
    kind: "type[Model | Seq2Seq | Encoder] | None" = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    full_check: bool = False,
) -> "Model | Seq2Seq | Encoder":
    """Open a bundle and make it ready to use.

    The weights are mapped, not copied: a bundle in use may be replaced file by file, and never
    changed in place. What `ortolan pack` prepared for this machine is used; when it does not
    fit, a warning of the logger `ortolan.runtime` says why.

    Args:
        path: folder of the bundle.
        kind: what to use it as: a `Model`, which continues texts, by default; `Seq2Seq`, which
            writes texts from sources; `Encoder`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. This version computes on the CPU.
        threads: threads within one operator; `None` for the physical cores that this process
            may use, or 1 for a small translator, whose decoder takes 1 in any case.
        full_check: read all weights once more than needed and compare their hash.

    Raises:
        BundleError: the bundle is missing, damaged, or does what bundles may not do.
        BundleKindError: it is of another kind than asked for.
        DeviceError: the device is unknown, absent, or not one the bundle was made for.
        InputError: `threads` is not a number of threads.
        MemoryPlanError: what loading takes is more than the memory that is left.
        MissingExtraError: onnxruntime is not installed.
    """
    chosen = Model if kind is None else kind
    bundle = open_bundle(path, full_check=full_check)
    _check_kind(bundle.manifest, chosen)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=full_check)
    check_load(bundle, is_packed=packed is not None)
    return chosen(bundle, Engine(bundle, device=device, threads=threads, packed=packed))


def _check_kind(manifest: Manifest, chosen: object) -> None:
    """Refuse a bundle of another kind before its weights are touched."""
    for each, kind, words in (
        (Model, "decoder", "a decoder"),
        (Seq2Seq, "encoder-decoder", "an encoder-decoder"),
        (Encoder, "encoder", "an encoder"),
    ):
        if chosen is each:
            if manifest.kind != kind:
                raise wrong_kind(manifest, what=f"load as {each.__name__}", expected=words)
            return
    raise InputError(f"kind: expected Model, Seq2Seq or Encoder, got {chosen!r}.")


class Model:
    """A bundle ready to generate. Several threads may use one at once.

    Attributes:
        bundle: what it was loaded from.
        tokenizer: `None` when the bundle takes only ids.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle = bundle
        self._engine = engine
        self._memory = RequestMemory(bundle.manifest)
        self.tokenizer = open_tokenizer(bundle)
        self._completer = Completer(engine, self.tokenizer)

    @property
    def manifest(self) -> Manifest:
        """What the bundle holds."""
        return self.bundle.manifest

    @property
    def device(self) -> str:
        """The device in use."""
        return self._engine.device

    @property
    def device_reason(self) -> str:
        """Why it is this device."""
        return self._engine.device_reason

    @property
    def threads(self) -> int:
        """Threads within one operator."""
        return self._engine.threads

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        cancel: Cancel | None = None,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        cancel: Cancel | None = None,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        cancel: Cancel | None = None,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or several at once.

        Several prompts are decoded together, and each gives what it gives alone: prompt number
        `b` of a list with seed `s` is the same as that prompt with seed `s + b`.

        Args:
            prompt: text, token ids, or a list of these, of any lengths. An empty one stands for
                the beginning-of-text token, where the model has one.
            max_new_tokens: most new tokens of each prompt; `None` for the rest of the context.
            sampling: how tokens are chosen; `None` takes the most probable.
            temperature: short for a `sampling` with nothing but this.
            stop: texts that end the completion and are not part of it.
            ignore_eos: go on behind end-of-text tokens.
            cancel: a function or an event, asked between any two calls of the model.

        Returns:
            A completion; a list of them for a list of prompts.

        Raises:
            ContextLengthError: a prompt and its new tokens are more than the context.
            MemoryPlanError: they need more memory than is left.
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        is_batch = _is_batch(prompt)
        prompts: list[Any] = list(prompt) if is_batch else [prompt]
        request = self._request(
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling_of(sampling, temperature),
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
        )
        completions = self._completer.complete(request)
        return completions if is_batch else completions[0]

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        cancel: Cancel | None = None,
    ) -> TextStream:
        """Continue a prompt, and give the text piece by piece.

        The request is checked at once; nothing is computed before the first piece is asked for.
        Closing or dropping the stream cancels it.

        Args:
            prompt: as for `generate`, but a single one.
            max_new_tokens: as for `generate`.
            sampling: as for `generate`.
            temperature: as for `generate`.
            stop: as for `generate`.
            ignore_eos: as for `generate`.
            cancel: as for `generate`.

        Returns:
            An iterator of pieces, which joined are the text; its `completion` is there at
            the end.

        Raises:
            TokenizerError: the bundle has no tokenizer.
            ContextLengthError: as for `generate`.
            InputError: as for `generate`.
        """
        if self.tokenizer is None:
            raise no_tokenizer("stream")
        if _is_batch(prompt):
            raise InputError("stream: expected one prompt, got a list of them. Use `generate`.")
        request = self._request(
            [prompt],
            max_new_tokens=max_new_tokens,
            sampling=sampling_of(sampling, temperature),
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
        )
        return self._completer.stream(request)

    def logits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Compute the logits behind every token of a sequence, teacher-forced.

        Args:
            ids: at least one, at most the context.

        Returns:
            float32 `(len(ids), vocab)`.

        Raises:
            ContextLengthError: more tokens than the context.
            InputError: no ids, or one outside the vocabulary.
            NumericError: the logits are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        tokens = checked_ids(ids, vocab_size=self.manifest.vocab_size, what="ids")
        if not tokens:
            raise InputError("ids: expected at least one token id, got none.")
        if len(tokens) > self.manifest.context_length:
            raise ContextLengthError(
                f"ids: expected at most {self.manifest.context_length} tokens, got "
                f"{len(tokens)}. Use a shorter sequence."
            )
        logits_SV = np.empty((len(tokens), self.manifest.vocab_size), np.float32)
        cache = self._engine.cache()
        for start, part in chunks(self._engine, cache, tokens):
            rows = logits_SV[start : start + len(part)]
            feed(self._engine, cache, part, positions=range(len(part)), logits_RV=rows)
            if not np.isfinite(rows.max(axis=-1)).all():
                # a kernel may spread one over its whole call, so the position is not known
                raise NumericError(
                    f"logits: expected finite ones, got others at positions {start} to "
                    f"{start + len(part) - 1}. Run `ortolan verify` on the bundle."
                )
        return logits_SV

    def sequence(self) -> sequence.Sequence:
        """Begin a conversation whose tokens are appended and taken back by the caller."""
        return sequence.Sequence(self._engine)

    def _request(
        self,
        prompts: list[Any],
        *,
        max_new_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
        ignore_eos: bool,
        cancel: Cancel | None,
    ) -> Request:
        """Check everything there is to check before anything is computed."""
        if not 1 <= len(prompts) <= MAX_PROMPTS:
            raise InputError(f"prompts: expected 1 to {MAX_PROMPTS}, got {len(prompts)}.")
        if len(stop) > 0 and self.tokenizer is None:
            raise no_tokenizer("stop")
        ids = [self._ids(prompt) for prompt in prompts]
        limits = tuple(self._limit(len(row), max_new_tokens) for row in ids)
        tokens = sum(map(len, ids)) + len(ids) * (max_new_tokens or 1)
        self._memory.check(tokens=tokens, rows=len(ids))
        return Request(
            prompts=tuple(ids),
            limits=limits,
            sampling=sampling,
            eos=frozenset() if ignore_eos else frozenset(self.manifest.tokens.eos),
            stop=stop,
            cancelled=asked(cancel),
            constraints=Constraints.of(self.manifest.tokens),
        )

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise no_tokenizer("prompt")
            prompt = self.tokenizer.encode(prompt)
        ids = checked_ids(prompt, vocab_size=self.manifest.vocab_size, what="prompt")
        if ids:
            return ids
        if self.manifest.tokens.bos is None:
            raise InputError(
                "prompt: expected at least one token, got none, and this model has no "
                "beginning-of-text token. Give it something to continue."
            )
        return [self.manifest.tokens.bos]

    def _limit(self, prompt_tokens: int, max_new_tokens: int | None) -> int:
        context = self.manifest.context_length
        room = context - prompt_tokens
        wanted = 1 if max_new_tokens is None else checked_count("max_new_tokens", max_new_tokens)
        if wanted > room:
            raise ContextLengthError(
                f"context: expected at most {context} tokens, got a prompt of {prompt_tokens} "
                f"and {wanted} new. Shorten the prompt, or lower max_new_tokens"
                f"{f' to {room}' if room > 0 else ''}."
            )
        return room if max_new_tokens is None else max_new_tokens


def _is_batch(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts. An empty list is one prompt without ids."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, list | tuple):
        return False
    return len(prompt) > 0 and not isinstance(prompt[0], int | np.integer)
