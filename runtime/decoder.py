"""A decoder: text or ids in; text, ids or logits out."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner, teacher_forced
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.generation import sequence
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import (
    Cancel,
    Request,
    cancel_function,
    checked_count,
    numbered,
    sampling_of,
)
from ortolan.runtime.generation.sampled_text import SampledText
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.source import is_batch
from ortolan.runtime.inputs.tokenizer import no_tokenizer, read_ids
from ortolan.runtime.model import Model

__all__ = ["Decoder", "Prompt"]

MAX_PROMPTS = 256
"""Prompts of one call; each takes a slot of its own."""

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text, or token ids."""

Prompts = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[np.integer[Any]]]
"""Several prompts, of any lengths."""


class Decoder(Model):
    """A bundle that continues texts."""

    kind = "decoder"

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        self._memory = RequestMemory(bundle.manifest)

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

        Several prompts are decoded together, and none depends on the others: prompt number `b` of
        a list with seed `s` is the same as that prompt with seed `s + b`. With weights in few bits
        other kernels compute a list than a single prompt; where two tokens are nearly as likely,
        the two may choose differently.

        Args:
            prompt: text, token ids, or a list of these, of any lengths. Empty text stands for the
                beginning-of-text token, where the model has one.
            max_new_tokens: most new tokens of each prompt; `None` for the rest of the context.
            sampling: how tokens are chosen; `None` takes the most probable.
            temperature: short for a `sampling` with nothing but this.
            stop: texts that end the completion and are not part of it.
            ignore_eos: go on after end-of-text tokens.
            cancel: a function or an event, checked between any two calls of the model.

        Returns:
            A completion; a list of them for a list of prompts.

        Raises:
            ContextLengthError: a prompt and its new tokens are more than the context.
            MemoryPlanError: they need more memory than is left.
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        chosen = sampling_of(sampling, temperature)
        texts = self._texts(
            list(prompt) if is_batch(prompt) else [prompt],
            max_new_tokens=max_new_tokens,
            sampling=chosen,
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
        )
        if not texts:
            return []
        generator = Generator(self._engine, slots=len(texts), exact=len(texts) > 1)
        for text in texts:
            generator.submit(text)
        generator.run()
        completions = [text.completion() for text in texts]
        return completions if is_batch(prompt) else completions[0]

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

        The request is checked at once; nothing is computed before the first piece is read.
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
        if is_batch(prompt):
            raise InputError("stream: expected one prompt, got a list of them. Use `generate`.")
        (text,) = self._texts(
            [prompt],
            max_new_tokens=max_new_tokens,
            sampling=sampling_of(sampling, temperature),
            stop=stop,
            ignore_eos=ignore_eos,
            cancel=cancel,
            streams=True,
        )
        return TextStream(text, Generator(self._engine, slots=1))

    def logits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Compute the logits after every token of a sequence, teacher-forced.

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
        tokens = checked_ids(
            ids,
            vocab_size=self.manifest.vocab_size,
            what="ids",
            fewest=1,
            most=self.manifest.context_length,
        )
        return teacher_forced(Runner(self._engine, self._engine.slots()), tokens)

    def sequence(self) -> sequence.Sequence:
        """Begin a conversation whose tokens are appended and taken back by the caller."""
        return sequence.Sequence(self._engine)

    def _texts(
        self,
        prompts: list[Any],
        *,
        max_new_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
        ignore_eos: bool,
        cancel: Cancel | None,
        streams: bool = False,
    ) -> list[SampledText]:
        """Check everything there is to check before anything is computed."""
        if len(prompts) > MAX_PROMPTS:
            raise InputError(f"prompts: expected at most {MAX_PROMPTS}, got {len(prompts)}.")
        if len(stop) > 0 and self.tokenizer is None:
            raise no_tokenizer("stop")
        ids = [self._ids(prompt) for prompt in prompts]
        limits = [self._limit(len(row), max_new_tokens) for row in ids]
        tokens = sum(map(len, ids)) + len(ids) * (max_new_tokens or 1)
        self._memory.check(tokens=tokens, rows=len(ids))
        eos = frozenset() if ignore_eos else frozenset(self.manifest.tokens.eos)
        constraints, cancelled = Constraints.of(self.manifest.tokens), cancel_function(cancel)
        return [
            SampledText(
                Request(
                    prompt=row,
                    prompt_tokens=len(row),
                    limit=limit,
                    sampling=numbered(sampling, index),
                    eos=eos,
                    stop=stop,
                    cancelled=cancelled,
                    constraints=constraints,
                ),
                vocab_size=self.manifest.vocab_size,
                tokenizer=self.tokenizer,
                streams=streams,
            )
            for index, (row, limit) in enumerate(zip(ids, limits, strict=True))
        ]

    def _ids(self, prompt: Any) -> list[int]:
        vocab_size = self.manifest.vocab_size
        ids = read_ids(prompt, self.tokenizer, vocab_size=vocab_size, what="prompt")
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
