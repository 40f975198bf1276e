"""`Encoder`: turns text, images or sounds into vectors, labels or text."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.encoding.answer import ANSWER_TOKENS, Answer, answer
from ortolan.runtime.encoding.classification import Classification, classify_call
from ortolan.runtime.encoding.filling import Filling, fill
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.encoding.token_classification import (
    Aggregation,
    TokenClassification,
    classify_tokens,
)
from ortolan.runtime.encoding.vectors import embed_call, logits_call, states_call, wave_call
from ortolan.runtime.encoding.zero_shot import classify_as
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.input_reader import Inputs
from ortolan.runtime.inputs.readers import reader_of
from ortolan.runtime.model import Model
from ortolan.runtime.serving.encoder_service import EncoderServeOptions, EncoderService
from ortolan.runtime.transcription.ctc import CtcOptions, transcribe_ctc
from ortolan.runtime.transcription.transcript import Transcript

R = TypeVar("R")

LABEL_SETS = 16  # sets of labels whose embeddings are kept


class Encoder(Model):
    """A loaded encoder of text, images or sounds.

        load("embedder/").embed(["a text", "another"])  # float32 (2, width)
        load("classifier/").classify("a text")[0].label
        load("wav2vec2/").transcribe("talk.mp3").text

    An input is text or token ids; for an image encoder, the path of a file, its bytes, or uint8
    pixels (`ortolan.runtime.inputs.images.read_pixels`); for an encoder of sounds, the path of a
    file, its bytes, or samples at its rate. The tokenizer adds special tokens to
    text, but not to ids. Classifiers, such as rerankers, also accept lists of pairs:
    `classify([("a query", "a document")])`.

    An encoder of images may come with one of texts, which it is compared with:
    `classify_as("photo.jpg", ["a cat", "a dog"])`, and `texts.embed("a cat")`.

    Inputs of similar length are computed together. Each result equals that of the input alone up
    to rounding; with int8 activations, up to their quantization error.
    """

    kind = "encoder"

    def __init__(self, bundle: Bundle, engine: Engine, texts: "Encoder | None" = None) -> None:
        super().__init__(bundle, engine)
        output = bundle.manifest.output
        if output is None:
            raise wrong_kind(bundle.manifest, what="Encoder", expected="an encoder")
        self._texts = texts
        self.rows = Rows(engine, reader_of(bundle.manifest, self.tokenizer), output)
        self._embed_texts = (
            None if texts is None else lru_cache(LABEL_SETS)(partial(_embedded, texts))
        )

    @property
    def texts(self) -> "Encoder":
        """Encoder of the texts that images are compared with.

        Raises:
            BundleKindError: there is none.
        """
        if self._texts is None:
            raise wrong_kind(
                self.manifest, what="texts", expected="an encoder of images with one of texts"
            )
        return self._texts

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
        """
        return self.rows.run(embed_call(self.rows, inputs, prompt=prompt, truncate=truncate))

    def classify(self, inputs: Inputs, *, truncate: bool = False) -> list[Classification]:
        """Score the labels of each input, as transformers' pipelines do.

        Same arguments and errors as `embed`. Raises BundleKindError if the encoder has no labels.
        """
        return self.rows.run(classify_call(self.rows, inputs, truncate=truncate))

    def classify_as(
        self,
        inputs: Inputs,
        labels: Sequence[str],
        *,
        multi_label: bool = False,
        template: str | None = None,
        truncate: bool = False,
    ) -> list[Classification]:
        """Score labels that you choose: zero-shot classification.

            model.classify_as("The match ended 2:1.", ["sport", "politics"])[0].label

        A classifier trained on entailment scores every label against every text (Yin et al. 2019,
        "Benchmarking Zero-shot Text Classification"), so the cost is that of `classify` on texts
        times labels pairs. Encoders of images and of texts compare each image with the labels
        (Radford et al. 2021), which are embedded once. The scores equal those of transformers'
        zero-shot pipelines.

        Args:
            inputs: one or a list: texts, or images for an encoder of images.
            labels: to choose from.
            multi_label: score each label independently. By default, the scores add up to 1, except
                with encoders of images that were trained to score labels independently.
            template: sentence about the input, with `{}` for the label. `None` is "This example is
                {}." for texts, and "This is a photo of {}." for images.
            truncate: cut texts that are too long, at the end.

        Raises:
            BundleKindError: the encoder has no entailment label, classifies no pairs, or embeds
                images without texts to compare them with.
            InputError: an input is not a text or an image, a label is empty or repeated, the
                template does not have exactly one `{}`, or the encoder of images cannot score
                labels independently.
            TokenizerError: the bundle has no tokenizer.
            ContextLengthError: a text is too long with a label, or the sentence of a label.
        """
        return classify_as(
            self.rows,
            inputs,
            labels,
            embed_texts=self._embed_texts,
            multi_label=multi_label,
            template=template,
            truncate=truncate,
        )

    def classify_tokens(
        self, inputs: Inputs, *, aggregation: Aggregation = "simple", truncate: bool = False
    ) -> list[TokenClassification]:
        """Label the tokens of each text, and group them to entities like transformers.

            model.classify_tokens("Ada lives in Paris.")[0].entities

        Args:
            inputs: a text or a list of texts.
            aggregation: see `ortolan.runtime.encoding.token_classification.Aggregation`.
            truncate: cut texts that are too long, at the end.

        Raises:
            BundleKindError: the encoder does not label tokens.
            ContextLengthError: a text is too long.
            InputError: an input is empty or not a text, or there is no such aggregation.
        """
        return classify_tokens(self.rows, inputs, aggregation=aggregation, truncate=truncate)

    def answer(
        self,
        question: str,
        context: str,
        *,
        max_answer_tokens: int = ANSWER_TOKENS,
        stride: int | None = None,
        allow_none: bool = False,
    ) -> Answer:
        """Find the part of a context that answers a question.

            model.answer("Where does Ada live?", "Ada lives in Paris.").text

        A long context is computed in windows of at most 384 tokens. Answers are whole words.

        Args:
            question: a text.
            context: a text of any length.
            max_answer_tokens: maximum length of the answer.
            stride: number of context tokens that neighbouring windows share. `None` means 128, or
                half a window if that is less.
            allow_none: return an empty answer if that is more probable, for models trained on
                questions without an answer (Rajpurkar et al. 2018, "SQuAD 2.0").

        Raises:
            BundleKindError: the encoder does not answer questions.
            InputError: a text is empty, or a length is not a positive number.
            TokenizerError: the question leaves no more than `stride` tokens of a window.
        """
        return answer(
            self.rows,
            question,
            context,
            max_answer_tokens=max_answer_tokens,
            stride=stride,
            allow_none=allow_none,
        )

    def fill(self, text: str, *, top: int = 5) -> Filling:
        """Fill the blanks of a text, like transformers' pipeline `fill-mask`.

            model.fill("Ada lives in [MASK].").blanks[0][0].text

        Args:
            text: with one or more blanks, as the model writes them: `[MASK]`, `<mask>` or
                `<|mask|>`.
            top: maximum number of candidates for a blank.

        Raises:
            BundleKindError: the encoder was not trained to fill blanks.
            ContextLengthError: the text is too long.
            InputError: the text has no blank, or an argument is invalid.
            TokenizerError: the tokenizer has no token for blanks.
        """
        return fill(self.rows, text, self.tokenizer, top=top)

    def states(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute a vector for each token of each input. Same arguments and errors as `embed`.

        Returns:
            float32 `(tokens, width)` per input. The tokens of an image are its patches, after the
            model's class token and registers, if it has them; those of a sound are its vectors.
        """
        return self.rows.run(states_call(self.rows, inputs, truncate=truncate))

    def logits(self, inputs: Inputs, *, truncate: bool = False) -> list[NDArray[np.float32]]:
        """Compute logits for each token of each input. Same arguments and errors as `embed`.

        With CTC, logits of symbols for each vector of each sound.

        Returns:
            float32 `(tokens, vocab)` per input.
        """
        return self.rows.run(logits_call(self.rows, inputs, truncate=truncate))

    @overload
    def transcribe(self, sound: Sound, **options: Unpack[CtcOptions]) -> Transcript: ...

    @overload
    def transcribe(self, sound: list[Any], **options: Unpack[CtcOptions]) -> list[Transcript]: ...

    def transcribe(
        self, sound: Sound | list[Any], **options: Unpack[CtcOptions]
    ) -> Transcript | list[Transcript]:
        """Transcribe a sound of any length, or several one after another, with CTC.

            transcript = load("wav2vec2/", Encoder).transcribe("talk.mp3")
            print(transcript.text)

        The text is that of the most probable symbols. Words have times, and a pause ends a segment.
        A sound that is longer than the encoder reads is computed in windows that overlap.

        Args:
            sound: a path, the bytes of a file, samples `(N,)` or `(N, channels)`; or a list of
                them.
            **options: see `ortolan.runtime.transcription.ctc.CtcOptions`.

        Returns:
            A transcript; a list of them for a list.

        Raises:
            BundleKindError: the encoder does not return the logits of CTC.
            ContextLengthError: a sound is too long, and the encoder too short for windows.
            InputError: a sound or an option is invalid.
            MissingExtraError: a package that reads sounds is not installed.
            TokenizerError: the bundle does not name its symbols.
        """

        def compute(wave_N: NDArray[np.float32]) -> NDArray[np.float32]:
            return self.rows.run(wave_call(self.rows, wave_N))

        if isinstance(sound, list):
            return [transcribe_ctc(own, self.manifest, compute, options) for own in sound]
        return transcribe_ctc(sound, self.manifest, compute, options)

    def serve(self, **options: Unpack[EncoderServeOptions]) -> EncoderService:
        """Start a service, which computes many requests at once, from threads or asyncio.

            with model.serve() as service:
                call = service.embed(["a text", "another"])
                vectors = call.result()  # or: await call

        Args:
            **options: see `ortolan.runtime.serving.encoder_service.EncoderServeOptions`.

        Raises:
            InputError: an option is invalid.
        """
        self._engine.check_usable()
        return EncoderService(self._engine, self.rows, **options)


def _embedded(texts: Encoder, sentences: tuple[str, ...], truncate: bool) -> NDArray[np.float32]:
    """Embeddings of sentences, which callers share."""
    vectors_LW = texts.embed(list(sentences), truncate=truncate)
    vectors_LW.flags.writeable = False
    return vectors_LW
