"""A loaded bundle: text or ids in, text, ids or logits out.

Knows how requests are written and checks them. Does not know how tokens are computed: that is
`ortolan.runtime.generate` and `ortolan.runtime.steps`.
"""

import os
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import sequence
from ortolan.runtime.bundle import Bundle, open_bundle
from ortolan.runtime.errors import (
    ContextLengthError,
    InputError,
    NumericError,
    TokenizerError,
)
from ortolan.runtime.generate import Completion, Request, TextStream, complete
from ortolan.runtime.ids import checked_ids
from ortolan.runtime.manifest import Manifest
from ortolan.runtime.packed import find_packed
from ortolan.runtime.sampling_options import Sampling
from ortolan.runtime.session import Engine, onnxruntime_version
from ortolan.runtime.steps import CHUNK, feed
from ortolan.runtime.tokenizer import Tokenizer

__all__ = ["Model", "Prompt", "load"]

MAX_PROMPTS = 256
"""Prompts of one call; each takes a cache of its own."""

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text, or token ids."""

Prompts = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[np.integer[Any]]]
"""Several prompts, of any lengths."""

Cancel = Callable[[], bool] | Event


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    full_check: bool = False,
) -> "Model":
    """Open a bundle and make it ready to generate.

    The weights are mapped, not copied: a bundle in use may be replaced file by file, and never
    changed in place. What `ortolan pack` prepared for this machine is used; when it does not
    fit, a warning of the logger `ortolan.runtime` says why.

    Args:
        path: folder of the bundle.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. This version generates on the CPU.
        threads: threads within one operator; `None` for the physical cores that this process
            may use.
        full_check: read all weights once more than needed and compare their hash.

    Raises:
        BundleError: the bundle is missing, damaged, or does what bundles may not do.
        DeviceError: the device is unknown, absent, or not one the bundle was made for.
        InputError: `threads` is not a number of threads.
        MissingExtraError: onnxruntime is not installed.
    """
    bundle = open_bundle(path, full_check=full_check)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=full_check)
    return Model(bundle, Engine(bundle, device=device, threads=threads, packed=packed))


class Model:
    """A bundle ready to generate. Several threads may use one at once.

    Attributes:
        bundle: what it was loaded from.
        tokenizer: `None` when the bundle takes only ids.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle = bundle
        self._engine = engine
        self.tokenizer = _tokenizer(bundle)

    @property
    def manifest(self) -> Manifest:
        """What the bundle holds."""
        return self.bundle.manifest

    @property
    def device(self) -> str:
        """The device in use."""
        return self._engine.device

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
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        is_batch = _is_batch(prompt)
        prompts: list[Any] = list(prompt) if is_batch else [prompt]
        request = self._request(
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=_sampling(sampling, temperature),
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
        )
        completions = complete(self._engine, request, self.tokenizer)
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
            raise _no_tokenizer("stream")
        if _is_batch(prompt):
            raise InputError("stream: expected one prompt, got a list of them. Use `generate`.")
        request = self._request(
            [prompt],
            max_new_tokens=max_new_tokens,
            sampling=_sampling(sampling, temperature),
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
        )
        return TextStream(self._engine, request, self.tokenizer)

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
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
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
            raise _no_tokenizer("stop")
        ids = [self._ids(prompt) for prompt in prompts]
        return Request(
            prompts=tuple(ids),
            limits=tuple(self._limit(len(row), max_new_tokens) for row in ids),
            sampling=sampling,
            eos=frozenset() if ignore_eos else frozenset(self.manifest.tokens.eos),
            stop=stop,
            cancelled=_asked(cancel),
        )

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise _no_tokenizer("prompt")
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
        if max_new_tokens is not None and (
            isinstance(max_new_tokens, bool)
            or not isinstance(max_new_tokens, int)
            or max_new_tokens < 1
        ):
            raise InputError(
                f"max_new_tokens: expected a whole number of at least 1, got {max_new_tokens!r}."
            )
        wanted = 1 if max_new_tokens is None else max_new_tokens
        if wanted > room:
            raise ContextLengthError(
                f"context: expected at most {context} tokens, got a prompt of {prompt_tokens} "
                f"and {wanted} new. Shorten the prompt, or lower max_new_tokens"
                f"{f' to {room}' if room > 0 else ''}."
            )
        return room if max_new_tokens is None else max_new_tokens


def _tokenizer(bundle: Bundle) -> Tokenizer | None:
    name = bundle.manifest.tokenizer
    if name is None:
        return None
    return Tokenizer.from_bytes(bundle.read(name), model_vocab_size=bundle.manifest.vocab_size)


def _is_batch(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts. An empty list is one prompt without ids."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, list | tuple):
        return False
    return len(prompt) > 0 and not isinstance(prompt[0], int | np.integer)


def _sampling(sampling: Sampling | None, temperature: float | None) -> Sampling:
    if temperature is None:
        return Sampling() if sampling is None else sampling
    if sampling is not None:
        raise InputError(
            "temperature: expected it within `sampling`, got both. "
            "Write Sampling(temperature=..., ...)."
        )
    return Sampling(temperature=temperature)


def _asked(cancel: Cancel | None) -> Callable[[], bool]:
    if cancel is None:
        return lambda: False
    asked = cancel.is_set if isinstance(cancel, Event) else cancel
    if not callable(asked):
        raise InputError(f"cancel: expected a function or an event, got {asked!r}.")
    return asked


def _no_tokenizer(what: str) -> TokenizerError:
    return TokenizerError(
        f"{what}: expected a bundle with a tokenizer, got one without. "
        "Give token ids and `generate`, or export with the tokenizer of the checkpoint."
    )
