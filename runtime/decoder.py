"""A decoder: text or ids in; text, ids or logits out."""

import os
from collections.abc import Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.chat.chat_model import ChatModel
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.prefix_cache import CACHE_BYTES, FOLDER_BYTES
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.last_prompt import LastPrompt
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.prompts import Prompt, PromptReader
from ortolan.runtime.generation.recommended import recommended_sampling
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.session import Session
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.source import is_batch
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer
from ortolan.runtime.model import Model
from ortolan.runtime.serving.service import Mode, Service

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat, Question

__all__ = ["Decoder", "Prompt"]

MAX_PROMPTS = 256
"""Prompts of one call; each takes a slot of its own."""

Prompts = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[np.integer[Any]]]
"""Several prompts, of any lengths."""


class Decoder(ChatModel, Model):
    """A bundle that continues texts."""

    kind = "decoder"

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        self._memory = RequestMemory(bundle.manifest)
        self._recommended = cache(partial(recommended_sampling, bundle))
        self._reader = cache(partial(PromptReader, bundle.manifest, recommended=self._recommended))

    @overload
    def generate(
        self, prompt: Prompt, *, draft: Draft | None = None, **options: Unpack[Options]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Prompt, *, n: int, draft: Draft | None = None, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        *,
        n: int | None = None,
        draft: Draft | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        *,
        n: int | None = None,
        draft: Draft | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """Continue a prompt, or several at once.

        Lists, of one prompt too, and every `n` are exact: prompt `b` of a list with seed `s` gets
        the same tokens and log-probabilities, to the bit, as in any other list with seed `s + b`
        and as from `serve`. A plain prompt skips what that costs (docs/adr/0021). With low-bit
        weights its logits differ in the last bits: a greedy text may continue differently where
        two tokens are nearly equally likely, and a sampled one mostly does after a while. A
        mixture of experts cannot be exact: prompts in one list change the last bits of each
        other's logits.

        Args:
            prompt: text, token ids, or a list of these, of any lengths. Empty text stands for the
                beginning-of-text token, where the model has one.
            n: number of completions per prompt, as if the prompt were listed that often;
                completions of one prompt are adjacent. `None` returns one, and no list.
            draft: guesses at the next tokens, of which several are checked in one call:
                `PromptLookup()` or `DraftModel(model)`. Prompts are then continued one after the
                other. Which guesses are made changes the time alone: the completion is that of
                any other draft, and of one that never guesses.
            **options: of each completion, as `ortolan.runtime.generation.options.Options` lists
                them.

        Returns:
            A completion; a list of them for a list of prompts, or for `n`.

        Raises:
            ContextLengthError: a prompt and its new tokens are more than the context.
            MemoryPlanError: they need more memory than is left.
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        is_list = n is not None or is_batch(prompt)
        several = list(prompt) if is_batch(prompt) else [prompt]
        count = 1 if n is None else checked_count("n", n)
        if len(several) * count > MAX_PROMPTS:
            raise InputError(
                f"prompts: expected at most {MAX_PROMPTS}, got {len(several) * count}."
            )
        prompts = [each for each in several for _ in range(count)]
        texts = self._texts(prompts, options, draft=draft)
        completions = self._completed(texts, draft, exact=is_list)
        return completions if is_list else completions[0]

    def stream(
        self, prompt: Prompt, *, draft: Draft | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """Continue a prompt, and give the text piece by piece.

        The request is checked at once; nothing is computed before the first piece is read.
        Closing or dropping the stream cancels it.

        Args:
            prompt: as for `generate`, but a single one.
            draft: as for `generate`.
            **options: as for `generate`.

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
        (text,) = self._texts([prompt], options, draft=draft, streams=True)
        return TextStream(text, self._generator(1, draft))

    def serve(
        self,
        *,
        slots: int = 8,
        queue: int = 64,
        mode: Mode = "exact",
        chunk: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_folder_bytes: int = FOLDER_BYTES,
    ) -> Service:
        """Begin to generate for many requests at once, from any thread and from asyncio.

            with model.serve(slots=8) as service:
                ticket = service.submit("def main(", max_new_tokens=64)
                for piece in ticket: ...

        Args:
            slots: texts that are computed together, at most.
            queue: requests that may wait besides.
            mode: `exact` texts are the same, to the bit, alone and beside others; `fast` ones take
                less time where there is only one.
            chunk: tokens of a prompt that are computed before the other texts get their next
                token: an even divisor of 128. `None` chooses.
            cache_bytes: memory for what was computed of prompts, for others that begin alike.
            cache_folder: where that is kept for later services too; `None` for nowhere.
            cache_folder_bytes: of all files of prefix caches in that folder.

        Raises:
            InputError: an option is out of range, the model cannot be `exact`, or the folder can
                be neither made nor written to.
            ForkedError: the process was forked after the model was loaded.
        """
        self._engine.check_process()
        return Service(
            self._engine,
            self._reader,
            self.tokenizer,
            lambda: self._chat,
            slots=slots,
            queue=queue,
            mode=mode,
            chunk=chunk,
            cache_bytes=cache_bytes,
            cache_folder=cache_folder,
            cache_folder_bytes=cache_folder_bytes,
        )

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
        return Runner(self._engine, self._engine.slots()).teacher_forced(tokens)

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Go on with a conversation that `Session.save` wrote.

        It gives what the saved one would have given, to the bit where both run on one machine.

        Args:
            path: of the file. It is read whole; afterwards it may be changed or deleted.

        Raises:
            StateFileError: it is not there, damaged, of another bundle, or of another version.
            InputError: it holds ids outside the vocabulary.
            MemoryError: there is no memory.
        """
        return Session.load(path, self._engine)

    def session(self) -> Session:
        """Begin a conversation whose tokens are appended and taken back by the caller."""
        return Session(self._engine)

    @property
    def recommended_sampling(self) -> Sampling:
        """What the model's `generation_config.json` recommends; greedy without one.

        Raises:
            SamplingError: the file is broken.
        """
        return self._recommended()

    @cached_property
    def _chat(self) -> "Chat":
        from ortolan.runtime.chat.chat import Chat  # needs the extra `chat`

        return Chat(self.bundle, self.tokenizer)

    @property
    def _identity(self) -> str:
        return self._engine.identity

    def _completions(
        self, question: "Question", n: int | None, draft: Draft | None
    ) -> list[Completion]:
        prompts = [question.prompt] * (1 if n is None else checked_count("n", n, most=MAX_PROMPTS))
        texts = self._texts(prompts, question.options, draft=draft, tokenizer=question.tokenizer)
        return self._completed(texts, draft, exact=n is not None)

    def _text_stream(
        self, question: "Question", draft: Draft | None, last: LastPrompt | None = None
    ) -> TextStream:
        (text,) = self._texts(
            [question.prompt],
            question.options,
            draft=draft,
            tokenizer=question.tokenizer,
            streams=True,
            last=last,
        )
        generator = self._generator(1, draft, last=last)
        if last is not None:
            last.begin(text)
        return TextStream(text, generator)

    def _last_prompt(self) -> LastPrompt:
        self._engine.check_process()
        return LastPrompt(self._engine)

    def _completed(
        self, texts: list[SampledSequence], draft: Draft | None, *, exact: bool = False
    ) -> list[Completion]:
        if texts:
            generator = self._generator(len(texts), draft, exact=exact)
            for text in texts:
                generator.submit(text)
            generator.run()
        return [text.completion() for text in texts]

    def _generator(
        self,
        texts: int,
        draft: Draft | None,
        *,
        exact: bool = False,
        last: LastPrompt | None = None,
    ) -> Generator:
        if draft is not None:
            texts, exact = 1, True
        if last is None:
            return Generator(self._engine, slots=texts, exact=exact)
        return Generator(
            self._engine,
            slots=texts,
            exact=True,
            last_prompt=last,
        )

    def _texts(
        self,
        prompts: list[Any],
        options: Options,
        *,
        draft: Draft | None = None,
        streams: bool = False,
        tokenizer: Tokenizer | None = None,
        last: LastPrompt | None = None,
    ) -> list[SampledSequence]:
        """Check everything there is to check before anything is computed."""
        reader = self._reader(self.tokenizer if tokenizer is None else tokenizer)
        requests = reader.requests(prompts, options, draft=draft)
        has_limit = options.get("max_new_tokens") is not None
        tokens = sum(
            len(request.prompt) + (request.limit if has_limit else 1) for request in requests
        )
        self._memory.check(
            tokens=tokens,
            rows=len(requests) if last is None else last.rows,
            held_tokens=0 if last is None else min(tokens, last.held_tokens),
        )
        return [reader.text(request, streams=streams) for request in requests]
