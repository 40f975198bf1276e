"""`Seq2Seq`: an encoder-decoder, which generates text from sources."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.errors import InputError, ManifestError
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.beam_search import BeamSequence
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import BeamOptions, Options, checked_beams
from ortolan.runtime.generation.request import Request, check_memory
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.ids import TokenIds, checked_ids
from ortolan.runtime.inputs.input_reader import Input, ReadInput, as_list, is_batch
from ortolan.runtime.inputs.readers import reader_of
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.model import Model
from ortolan.runtime.serving.seq2seq_service import Seq2SeqServeOptions, Seq2SeqService
from ortolan.runtime.transcription.transcriber import TranscribeOptions, Transcriber
from ortolan.runtime.transcription.transcript import Segment, Transcript

MAX_SOURCES = 4096  # maximum number of sources per call

MAX_ROWS = 64  # maximum number of rows, over all sources and beams, in one decode step

# A batch of sources, of any lengths
Inputs = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[Any]] | list[Path]


class Seq2Seq(Model):
    """A loaded encoder-decoder, such as a translator.

        model = load("translator/")
        print(model.generate("I live in Paris.", beams=4).text)

    A source is text or token ids; for an image encoder, the path of a file, its bytes, or uint8
    pixels; for an encoder of sounds, the path of a file, its bytes, or samples. The tokenizer adds
    special tokens to text, but not to ids.
    """

    kind = "encoder-decoder"

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        manifest = bundle.manifest
        if manifest.tokens.start is None:
            raise ManifestError(
                "manifest.json names no start token for the decoder. Export the checkpoint again, "
                "with a decoder_start_token_id."
            )
        self._start = manifest.tokens.start
        self._memory = RequestMemory(manifest, is_on_host=engine.is_on_host)
        self._requests = RequestReader(bundle, self.tokenizer)
        self._inputs = reader_of(manifest, self.tokenizer)

    @overload
    def generate(
        self, source: Input, *, first: str | int | None = None, **options: Unpack[BeamOptions]
    ) -> Completion: ...

    @overload
    def generate(
        self, source: Inputs, *, first: str | int | None = None, **options: Unpack[BeamOptions]
    ) -> list[Completion]: ...

    def generate(
        self,
        source: Input | Inputs,
        *,
        first: str | int | None = None,
        **options: Unpack[BeamOptions],
    ) -> Completion | list[Completion]:
        """Generate text from one source or from a batch.

        Sources of similar length are computed together. Each result equals that of the source
        alone up to rounding: where two tokens are almost equally likely, the text may differ.

        Args:
            source: one source, or a list of them.
            first: the first new token, as text or id, such as the target language; `None` for
                the checkpoint's own, if any.
            **options: see `ortolan.runtime.generation.options.BeamOptions` and `Options`. With a
                seed `s`, source `b` of a batch uses seed `s + b`.

        Returns:
            A completion; a list of them for a batch.

        Raises:
            ContextLengthError: a source or the new tokens are too long for the model.
            MemoryPlanError: there is not enough free memory.
            InputError: another part of the request is invalid.
        """
        settings, others = checked_beams(options)
        beams = settings.beams
        requests = self._read(source, others, first, beams=beams)
        sequences: list[ActiveSequence] = [
            self._requests.sequence(request)
            if beams == 1
            else BeamSequence(request, settings, tokenizer=self.tokenizer)
            for request in requests
        ]
        completions = self._completed(sequences, beams=beams)
        return completions if is_batch(source) else completions[0]

    @overload
    def transcribe(self, sound: Sound, **options: Unpack[TranscribeOptions]) -> Transcript: ...

    @overload
    def transcribe(
        self, sound: list[Any], **options: Unpack[TranscribeOptions]
    ) -> list[Transcript]: ...

    def transcribe(
        self, sound: Sound | list[Any], **options: Unpack[TranscribeOptions]
    ) -> Transcript | list[Transcript]:
        """Transcribe a sound of any length, or several.

            transcript = load("whisper/", Seq2Seq).transcribe("talk.mp3")
            print(transcript.text)

        Args:
            sound: a path, the bytes of a file, samples `(N,)` or `(N, channels)`; or a list of
                them, which are computed together.
            **options: see `ortolan.runtime.transcription.transcriber.TranscribeOptions`.

        Returns:
            A transcript; a list of them for a list.

        Raises:
            BundleKindError: the bundle reads no sounds.
            InputError: a sound or an option is invalid.
            MemoryPlanError: there is not enough free memory.
            MissingExtraError: a package that reads sounds is not installed.
        """
        sounds = sound if isinstance(sound, list) else [sound]
        _check_count(len(sounds))
        transcripts = self._transcriber(options).whole(sounds)
        return transcripts if isinstance(sound, list) else transcripts[0]

    def listen(
        self, blocks: Iterable[Sound], **options: Unpack[TranscribeOptions]
    ) -> Iterator[Segment]:
        """Transcribe a sound while it is recorded.

        Options are checked at once. A segment comes as soon as a window is full, the last ones when
        the sound has ended. Loudness is judged window by window, so that the text may differ
        slightly from that of `transcribe`.

        Args:
            blocks: samples of any lengths, such as from a microphone.
            **options: as for `transcribe`; `rate` is that of the blocks.

        Returns:
            An iterator of segments.

        Raises:
            OrtolanError: as `transcribe`, also while it is iterated.
        """
        return self._transcriber(options).live(blocks)

    def stream(
        self, source: Input, *, first: str | int | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """Generate text from one source, piece by piece. There are no streams of beam searches.

        The request is checked at once; computation starts with the first piece. Closing or
        dropping the stream cancels it.

        Args:
            source: one source.
            first: as for `generate`.
            **options: see `ortolan.runtime.generation.options.Options`.

        Returns:
            An iterator of pieces of text. Its `completion` is available at the end.

        Raises:
            TokenizerError: the bundle has no tokenizer.
            ContextLengthError, MemoryPlanError, InputError: as for `generate`.
        """
        if self.tokenizer is None:
            raise no_tokenizer("stream")
        if is_batch(source):
            raise InputError("stream accepts a single source. Use `generate` for a list.")
        (request,) = self._read(source, options, first, beams=1)
        return TextStream(self._requests.sequence(request, streams=True), self._generator(1))

    def logits(self, source: Input, ids: TokenIds) -> NDArray[np.float32]:
        """Compute the logits after every token of a given output, teacher-forced.

        Args:
            source: one source.
            ids: input of the decoder: its start token, then the output.

        Returns:
            float32 `(len(ids), vocab)`.

        Raises:
            ContextLengthError: the source or the ids are too long for the model.
            InputError: a list of sources, no ids, or one outside the vocabulary.
        """
        if is_batch(source):
            raise InputError("logits accepts a single source, not a list.")
        tokens = checked_ids(ids, vocab_size=self.manifest.vocab_size, what="ids", fewest=1)
        slots = self._engine.slots()
        slots.sources.put([0], self._encoded([self._inputs.read(source)]))
        return Runner(self._engine, slots).teacher_forced(tokens)

    @property
    def recommended_sampling(self) -> Sampling:
        """Sampling that the model's `generation_config.json` recommends; greedy without one.

        Raises:
            SamplingError: the file is invalid.
        """
        return self._requests.recommended_sampling

    def serve(self, **options: Unpack[Seq2SeqServeOptions]) -> Seq2SeqService:
        """Start a service, which generates for many requests at once, from threads or asyncio.

            with model.serve(slots=8) as service:
                ticket = service.submit("I live in Paris.")
                print(ticket.result().text)

        Args:
            **options: see `ortolan.runtime.serving.seq2seq_service.Seq2SeqServeOptions`.

        Raises:
            InputError: an option is invalid.
        """
        self._engine.check_usable()
        return Seq2SeqService(
            self._engine, self._requests, self._inputs, self._start, self.tokenizer, **options
        )

    def _read(
        self, source: Any, options: Options, first: str | int | None, *, beams: int
    ) -> list[Request]:
        """Check sources, options and memory before anything is computed."""
        batch = as_list(source)
        _check_count(len(batch))
        sources = [self._inputs.read(item) for item in batch]
        requests = self._requests.sources(sources, options, start=self._start, first=first)
        longest = sorted(requests, key=lambda request: -request.prompt_tokens)
        check_memory(self._memory, longest[: _slots(beams)], beams=beams)
        return requests

    def _transcriber(self, options: TranscribeOptions) -> Transcriber:
        def run(requests: Sequence[Request]) -> list[Completion]:
            check_memory(self._memory, requests[: _slots(1)])
            return self._completed([self._requests.sequence(request) for request in requests])

        reader, start = self._requests, self._start
        return Transcriber(self.manifest, reader, self.tokenizer, run, start=start, options=options)

    def _completed(
        self, sequences: Sequence[ActiveSequence], *, beams: int = 1
    ) -> list[Completion]:
        """Generate sequences together, by length of source: similar ones end at similar times."""
        if sequences:
            generator = self._generator(len(sequences), beams=beams)
            for sequence in sorted(sequences, key=lambda own: -own.request.prompt_tokens):
                generator.submit(sequence)
            generator.run()
        return [sequence.completion() for sequence in sequences]

    def _generator(self, count: int, *, beams: int = 1) -> Generator:
        slots = min(count, _slots(beams))
        return Generator(self._engine, slots=slots, beams=beams, encode=self._encoded)

    def _encoded(self, sources: Sequence[ReadInput]) -> Encoded:
        calls = self._inputs.calls(sources)
        return self._engine.joined([self._engine.encode_sources(feeds) for feeds in calls])


def _check_count(sources: int) -> None:
    if sources > MAX_SOURCES:
        raise InputError(f"A call accepts at most {MAX_SOURCES} sources (got {sources}).")


def _slots(beams: int) -> int:
    return max(1, MAX_ROWS // beams)
