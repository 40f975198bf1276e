"""`Decoder`: a language model, which continues text."""

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.chat.chat_model import MAX_PROMPTS, ChatModel
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.media_reader import MediaReader
from ortolan.runtime.generation.options import Options, adapter_number
from ortolan.runtime.generation.request_reader import Prompt, RequestReader
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.session import Session
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.input_reader import as_list, is_batch
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.serving.service import ServeOptions, Service
from ortolan.runtime.transcription.dictation import DictationOptions, dictate, dictation_of
from ortolan.runtime.transcription.transcript import Transcript

if TYPE_CHECKING:
    from ortolan.runtime.encoder import Encoder

# A batch of prompts, of any lengths
Prompts = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[np.integer[Any]]]


class Decoder(ChatModel):
    """A loaded language model.

        model = load("bundle/")
        print(model.generate("def main(", max_new_tokens=64).text)
        print(model.chat([{"role": "user", "content": "Hello!"}]).content)

    `generate` and `chat` return whole results, `stream` and `chat_stream` pieces. `serve` accepts
    many requests at once. `session` leaves each step to the caller.
    """

    kind = "decoder"

    def __init__(self, bundle: Bundle, engine: Engine, encoder: "Encoder | None" = None) -> None:
        """Use `ortolan.load` instead. `encoder` is that of the images or sounds of prompts."""
        super().__init__(bundle, engine)
        self._encoder = encoder
        self._memory = RequestMemory(bundle.manifest, is_on_host=engine.is_on_host)
        self._adapters = () if engine.adapters is None else engine.adapters.names
        features, pictures = bundle.manifest.features, engine.pictures
        media = None
        if encoder is not None and features is not None and pictures is not None:
            media = MediaReader(encoder.manifest, encoder.rows.vectors, features, pictures)
        self._reader = cache(  # by tokenizer
            lambda own: RequestReader(bundle, own, adapters=self._adapters, media=media)
        )

    def close(self) -> None:
        """Free the memory of the model. Later calls raise InputError; close services first."""
        super().close()
        if self._encoder is not None:
            self._encoder.close()

    # a list of texts is a batch, a list of texts and images is one prompt
    @overload
    def generate(
        self, prompt: Prompts, *, n: int | None = None, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion: ...

    @overload
    def generate(
        self, prompt: Prompt, *, n: int, **options: Unpack[Options]
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Prompt | Prompts, *, n: int | None = None, **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """Continue one prompt or a batch.

        Batches, and calls with `n`, are exact: prompt `b` of a batch with seed `s` gets the same
        tokens and log-probabilities, to the bit, as in any other batch with seed `s + b` and as
        from `serve`. A single prompt skips the cost of that (docs/adr/0021): with low-bit weights
        its logits differ in the last bits, so greedy text may continue differently where two tokens
        are almost equally likely, and sampled text usually does after a while. A mixture of experts
        is never exact: prompts of a batch change each other's last bits.

        Args:
            prompt: text, token ids, or a list of these. Empty text stands for the BOS token. For a
                model that reads images, also a list of texts and images:
                `[{"image": "photo.jpg"}, "What is this?"]`.
            n: number of completions per prompt; completions of one prompt are adjacent. `None`
                returns a single completion instead of a list.
            **options: see `ortolan.runtime.generation.options.Options`.

        Returns:
            A completion; a list of them for a batch, or with `n`.

        Raises:
            ContextLengthError: a prompt and its new tokens exceed the context.
            MemoryPlanError: there is not enough free memory.
            InputError: another part of the request is invalid.
        """
        count = 1 if n is None else checked_count("n", n)
        batch: list[Any] = as_list(prompt)
        if len(batch) * count > MAX_PROMPTS:
            raise InputError(
                f"A call accepts at most {MAX_PROMPTS} prompts (got {len(batch) * count})."
            )
        prompts = [item for item in batch for _ in range(count)]
        is_list = n is not None or is_batch(prompt)
        completions = self._completions(prompts, options, exact=is_list)
        return completions if is_list else completions[0]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Continue a prompt, piece by piece.

        The request is checked at once; computation starts with the first piece. Closing or
        dropping the stream cancels it.

        Args:
            prompt: text or token ids.
            **options: see `ortolan.runtime.generation.options.Options`.

        Returns:
            An iterator of pieces of text. Its `completion` is available at the end.

        Raises:
            TokenizerError: the bundle has no tokenizer.
            ContextLengthError, MemoryPlanError, InputError: as for `generate`.
        """
        if self.tokenizer is None:
            raise no_tokenizer("stream")
        if is_batch(prompt):
            raise InputError("stream accepts a single prompt. Use `generate` for a list.")
        return self._texts(prompt, options)

    def serve(self, **options: Unpack[ServeOptions]) -> Service:
        """Start a service, which generates for many requests at once, from threads or asyncio.

            with model.serve(slots=8) as service:
                ticket = service.submit("def main(", max_new_tokens=64)
                for piece in ticket: ...

        Args:
            **options: see `ortolan.runtime.serving.service.ServeOptions`.

        Raises:
            InputError: an option is invalid, the model cannot be `exact`, or the cache folder
                cannot be written.
        """
        self._engine.check_usable()
        return Service(
            self._engine,
            self._reader,
            self.tokenizer,
            lambda: self._chat,
            encoder=self._encoder,
            **options,
        )

    def logits(
        self, ids: Sequence[int] | NDArray[np.integer[Any]], *, adapter: str | None = None
    ) -> NDArray[np.float32]:
        """Compute the logits after every token of a sequence, teacher-forced.

        Args:
            ids: at least one, at most the context.
            adapter: as for `generate`.

        Returns:
            float32 `(len(ids), vocab)`.

        Raises:
            ContextLengthError: the ids exceed the context.
            InputError: no ids, one outside the vocabulary, or an unknown adapter.
        """
        tokens = checked_ids(
            ids,
            vocab_size=self.manifest.vocab_size,
            what="ids",
            fewest=1,
            most=self.manifest.context_length,
        )
        slots = self._engine.slots()
        slots.adapters[:] = adapter_number(adapter, self._adapters)
        return Runner(self._engine, slots).teacher_forced(tokens)

    def session(self, *, adapter: str | None = None) -> Session:
        """Start a session, in which the caller appends and removes tokens.

        Args:
            adapter: as for `generate`.

        Raises:
            InputError: the adapter is not loaded.
        """
        return Session(self._engine, adapter=adapter_number(adapter, self._adapters))

    def load_session(self, path: str | os.PathLike[str], *, adapter: str | None = None) -> Session:
        """Continue a session saved by `Session.save`.

        On the same machine its logits are those of the original session, to the bit.

        Args:
            path: of the file, which is read at once and not needed afterwards.
            adapter: the one that the session was started with, among the same adapters.

        Raises:
            StateFileError: the file is missing, damaged, or of another bundle, adapter or version.
            InputError: it holds ids outside the vocabulary, or the adapter is not loaded.
            MemoryError: there is not enough memory.
        """
        number = adapter_number(adapter, self._adapters)
        return Session.load(path, self._engine, adapter=number)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return self._adapters

    @property
    def recommended_sampling(self) -> Sampling:
        """Sampling that the model's `generation_config.json` recommends; greedy without one.

        Raises:
            SamplingError: the file is invalid.
        """
        return self._reader(self.tokenizer).recommended_sampling

    def transcribe(self, sound: Sound, **options: Unpack[DictationOptions]) -> Transcript:
        """Transcribe a sound of any length with a chat model that reads sounds.

            transcript = load("qwen3-asr/", Decoder).transcribe("talk.mp3")
            print(transcript.language, transcript.text)

        A sound of more than two minutes is cut at quiet places; each part is a segment.

        Args:
            sound: a path, the bytes of a file, or samples `(N,)` or `(N, channels)`.
            **options: see `ortolan.runtime.transcription.dictation.DictationOptions`.

        Raises:
            BundleKindError: the model does not transcribe.
            ContextLengthError: a part of the sound does not fit into the context.
            InputError: a sound or an option is invalid.
            MissingExtraError: a package that reads sounds, or Jinja, is not installed.
        """

        def answer(
            samples_N: NDArray[np.float32], begun: str | None, most_tokens: int
        ) -> Completion:
            question = self._chat.dictation(samples_N, begun, most_tokens)
            return self.generate(question.prompt, **question.options)

        return dictate(sound, *dictation_of(self.manifest, self._encoder), answer, options)
