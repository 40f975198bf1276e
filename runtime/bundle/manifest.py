"""The fields of manifest.json: the contract between export and runtime.

    manifest.json
      schema, kind, precision, ...     what the bundle is
      graphs       role ─► Graph       ONNX files and how they are called
      states       State, ...          what the decoder carries from step to step
      tokens, source, output           ids with a meaning; what goes in; what comes out
      weights, tokenizer, certificate  file names
      files        File, ...           every other file of the bundle, with size and SHA-256
      provenance, quantized, quality   where it comes from, and how close it is to the original

`ortolan.runtime.bundle.manifest_file` reads and writes it, and checks how the fields fit together.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from ortolan.runtime import limits
from ortolan.runtime.bundle.chat_form import ChatForm
from ortolan.runtime.bundle.field_types import Label, Record, Sha256, TokenId
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.kinds import DECODER, KINDS, OUTPUTS, PREFILL, ModelKind, OutputKind
from ortolan.runtime.bundle.parts import (
    MTP,
    SOUND,
    TEXT,
    VISION,
    Comparison,
    Dictation,
    Features,
    HiddenStates,
    PartName,
)
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.bundle.witness import Witness
from ortolan.runtime.errors import BundleKindError

NAME = "manifest.json"
"""File name of the manifest, the only file of a bundle that it does not list."""

SCHEMA: Final = 1
"""Version of the format."""

FileName = Annotated[str, Meta(pattern=limits.FILE_NAME_PATTERN)]
Form = Annotated[str, Meta(min_length=1, max_length=limits.MAX_FORM_LENGTH)]
StateType = Literal["float32", "float16", "bfloat16", "int8"]
STATE_BYTES: Mapping[StateType, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
KernelEntry = Annotated[str, Meta(pattern=r"\Amlas\.[a-z0-9_]{1,64}\Z")]
"""Session config entry that selects kernels. Others can make onnxruntime read and write files."""

KernelVariable = Annotated[str, Meta(pattern=r"\AORT_GQA_DISABLE_FLASH_ATTENTION\Z")]
"""Variable that selects kernels. Others can make onnxruntime write files or change the process."""

MediaSource = ImageSource | PatchSource | AudioSource | WaveSource | ChunkedSource
"""Images or sounds as input of an encoder."""

Source = TextSource | MediaSource
"""Input of an encoder."""

Axis = (
    Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
    | Annotated[str, Meta(pattern=r"\A(batch|capacity|source)\Z")]
)
CacheType = Literal["grows", "slots"]
KindName = Annotated[str, Meta(pattern=rf"\A({'|'.join(KINDS)})\Z")]
OutputName = Annotated[str, Meta(pattern=rf"\A({'|'.join(OUTPUTS)})\Z")]


class File(Record, frozen=True, kw_only=True):
    """A file of the bundle.

    Attributes:
        sha256: hash of the whole file, 64 lower-case hexadecimal digits.
    """

    name: FileName
    size: Annotated[int, Meta(ge=0, le=limits.MAX_FILE_BYTES)]
    sha256: Sha256


class State(Record, frozen=True, kw_only=True):
    """A tensor that a decoder carries from step to step, or reads in every step.

    Attributes:
        input: name of the decoder input.
        output: name of the output with its next value; for `source`, an output of the encoder.
        shape: sizes, where `"batch"` appears once, `"capacity"` once if the state grows, and
            `"source"` once if it belongs to a source: `["batch", 8, "capacity", 64]`.
        dtype: element type; `int8`, for growing states only, holds codes whose scales are in the
            graph.
        update: `append` grows along `"capacity"`, `replace` has a fixed size, `source` is computed
            once by the encoder and only read.
        window: for growing states that need only the last tokens: how many the next token attends
            to, itself included. The graph then reads `window_starts`.
    """

    name: Label
    input: Label
    output: Label
    shape: Annotated[tuple[Axis, ...], Meta(max_length=limits.MAX_STATE_RANK)]
    dtype: StateType
    update: Literal["append", "replace", "source"]
    window: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)] | None = None

    @property
    def unit_bytes(self) -> int:
        """Bytes per row, or per row and token along `"capacity"` or `"source"`."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return math.prod(sizes) * STATE_BYTES[self.dtype]


class Graph(Record, frozen=True, kw_only=True):
    """An ONNX graph.

    Attributes:
        sequence: 1 if a call takes exactly one new token per row; `None` for any number.
        min_new_tokens: for a prefill graph, the fewest new tokens that it is used for; calls with
            fewer use the decode graph.
    """

    file: FileName
    sequence: Literal[1] | None = None
    min_new_tokens: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)] = 1


Suppressed = Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_SUPPRESSED)]


class Tokens(Record, frozen=True, kw_only=True):
    """Token ids with a meaning.

    Attributes:
        bos: starts a text.
        eos: any of these ends a sequence.
        pad: fills batches; lengths are never inferred from it.
        start: first token of an encoder-decoder's output.
        forced_first: generated first, whatever the model predicts.
        forced_last: generated last when the length limit is reached.
        suppressed: never generated.
        suppressed_first: never generated first; left out if there are none.
        opening: follow `start` in a transcription that names neither a language nor a task, where
            `None` is the recognized language; left out if these are the language and `transcribe`.
    """

    bos: TokenId | None = None
    eos: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_STOP_TOKENS)] = ()
    pad: TokenId | None = None
    start: TokenId | None = None
    forced_first: TokenId | None = None
    forced_last: TokenId | None = None
    suppressed: Suppressed = ()
    suppressed_first: Suppressed = ()
    opening: Annotated[tuple[TokenId | None, ...], Meta(max_length=limits.MAX_OPENING)] = ()


class Output(Record, frozen=True, kw_only=True):
    """Output of an encoder without a decoder.

    Attributes:
        kind: `states`, `logits`, `embedding`, `spans` (logits of an answer's start and end for each
            token), `ctc` (logits of symbols for each vector of a sound), or one of four kinds of
            classification: `labels` (softmax), `tags` (sigmoid), `scores` (as they are) and
            `token_labels` (softmax for each token).
        labels: names of the numbers, except for `states`, `logits` and `embedding`. Those of `ctc`
            are the text of each symbol, where a space separates words and `tokens.pad` is the
            blank; empty if the checkpoint does not name them.
    """

    kind: OutputName
    size: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
    labels: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_LABELS)] = ()


class Speech(Record, frozen=True, kw_only=True):
    """Tokens with which a decoder transcribes (Radford et al. 2023, figure 1).

    Its text begins with the start token, a language, a task, and `no_timestamps` if no times are
    wanted. Times are tokens too: `first_timestamp` is the start of the sound, and each further id
    one vector of the encoder later.

    Attributes:
        languages: ids by code, such as `en`; empty for a model of one language.
        tasks: ids of `transcribe` and `translate`; empty for a model of one language.
        no_timestamps: stands where no times are wanted.
        first_timestamp: stands for the start of the sound.
        latest_start: vectors before the first time, at most; `None` without a limit.
    """

    languages: Annotated[dict[Label, TokenId], Meta(max_length=limits.MAX_LANGUAGES)]
    tasks: dict[Literal["transcribe", "translate"], TokenId]
    no_timestamps: TokenId
    first_timestamp: TokenId
    latest_start: Annotated[int, Meta(ge=0, le=limits.MAX_CONTEXT)] | None = None


class QuantizedTensor(Record, frozen=True, kw_only=True):
    """A low-bit weight.

    Attributes:
        group: values of a row that share a scale (group size); `None` for a whole row.
        symmetric: whether there are no zero points.
        method: how the weight was rounded: `rtn`, `gptq`, `tuned` (after `gptq`), or `kept`
            if the checkpoint was quantized already.
        error: norm of the rounding error, relative to the norm of the weight.
    """

    name: Label
    bits: Literal[4, 8]
    group: Literal[32, 64, 128, 256] | None
    symmetric: bool
    method: Literal["rtn", "gptq", "tuned", "kept"]
    error: Annotated[float, Meta(ge=0)]


class Provenance(Record, frozen=True, kw_only=True):
    """Where a bundle comes from.

    Attributes:
        source_sha256: hash of the exported checkpoint.
        model_type: family, as the checkpoint names it.
        versions: versions of the packages that exported it, by package.
        accepted_keys: unknown keys of the checkpoint's config that the user accepted.
        ignored_keys: keys of the checkpoint's config that do not affect the model.
        left_out: parts of the checkpoint for other inputs than text, which are not in the bundle.
        calibrated_on: description of the calibration data; `None` without calibration.
        repository: `org/name@commit` of a checkpoint of the Hugging Face Hub.
    """

    source_sha256: Sha256
    model_type: Label
    versions: Annotated[dict[Label, Label], Meta(max_length=limits.MAX_VERSIONS)]
    accepted_keys: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    ignored_keys: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    left_out: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    calibrated_on: Label | None = None
    repository: Label | None = None


class SessionSettings(Record, frozen=True, kw_only=True):
    """Settings of onnxruntime that select kernels, and so change the last bits of results."""

    disabled_optimizers: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_SETTINGS)]
    environment: Annotated[dict[KernelVariable, Label], Meta(max_length=limits.MAX_SETTINGS)]
    config_entries: Annotated[dict[KernelEntry, Label], Meta(max_length=limits.MAX_SETTINGS)] = (
        field(default_factory=dict)
    )


class Host(Record, frozen=True, kw_only=True):
    """What programs other than this runtime need to compute the same.

    This runtime takes no setting from it.

    Attributes:
        session: settings that the certificate was measured with.
        onnxruntime: version that it was measured with.
        query_heads: query heads of the widest attention.
        cache: how growing states get room without shared buffers. `grows`: the input holds exactly
            the tokens so far, and the output also the new ones. `slots`: the input has free slots,
            which the graph writes to. `None` if no state grows.
    """

    session: SessionSettings
    onnxruntime: Label
    query_heads: Annotated[int, Meta(ge=0, le=limits.MAX_DIMENSION)]
    cache: CacheType | None = None


class Manifest(Record, frozen=True, kw_only=True):
    """The contents of manifest.json.

    Attributes:
        kind: `decoder`, `encoder` or `encoder-decoder`.
        precision: type of the weights. With `int8` or `int4`, weights that are not in `quantized`
            are float32, or float16 if the graphs were made for a GPU.
        attention: `fused` into one operator, or `portable`: built from standard operators.
        devices: kinds of device that can run the graphs; the one they were made for comes first.
        context_length: most tokens of a row, prompt and completion together.
        graphs: graphs by role; see `ortolan.runtime.bundle.interface`.
        weights: names of the files that hold the weights.
        tokenizer: name of the tokenizer's file; `None` if the bundle accepts only ids.
        certificate: name of the file that `ortolan verify` replays; `None` if there is nothing to
            compare with, as `unverified` says.
        files: every file of the bundle except the manifest, sorted by name.
        prefill_precision: type of the weights of the prefill graph, if it differs.
        quantized: every low-bit weight, including those of the prefill graph.
        output: output of an encoder without a decoder.
        attention_maps: outputs of the graph `attention`, such as `decoder.0.cross`.
        foreign_operators: node forms outside of Ortolan's vocabulary that the exported module
            needs; see `ortolan.runtime.graph.vocabulary`.
        unverified: why the export could not replay the certificate; `None` if it did.
        quality: distance from the trained model; `None` if it was not measured.
        witness: what the publisher's own code answered; left out by exports that did not ask.
        images: vectors of images that a decoder reads; left out if it reads none.
        sounds: vectors of sounds that a decoder reads; left out if it reads none.
        hidden_states: states for a head that predicts further tokens; left out if there is none.
        speech: tokens with which the decoder transcribes; left out if it has none.
        dictation: how a decoder that reads sounds transcribes; left out if it does not.
        texts: how an encoder of images compares them with texts; left out if it does not.
        chat: the chat template as texts around messages, for hosts without Jinja; left out if it
            does more than that.
    """

    schema: Literal[1]
    kind: KindName
    precision: Literal["fp32", "fp16", "bf16", "int8", "int4"]
    attention: Literal["fused", "portable"]
    devices: Annotated[tuple[Label, ...], Meta(min_length=1, max_length=limits.MAX_DEVICES)]
    context_length: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    vocab_size: Annotated[int, Meta(ge=1, le=limits.MAX_VOCABULARY)]
    graphs: dict[str, Graph]
    states: Annotated[tuple[State, ...], Meta(max_length=limits.MAX_STATES)]
    weights: tuple[FileName, ...]
    tokens: Tokens
    tokenizer: FileName | None
    certificate: FileName | None
    files: Annotated[tuple[File, ...], Meta(min_length=1, max_length=limits.MAX_FILES)]
    provenance: Provenance
    host: Host
    prefill_precision: Literal["int8"] | None = None
    quantized: Annotated[tuple[QuantizedTensor, ...], Meta(max_length=limits.MAX_QUANTIZED)] = ()
    source: Source | None = None
    output: Output | None = None
    attention_maps: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_STATES)] = ()
    foreign_operators: Annotated[tuple[Form, ...], Meta(max_length=limits.MAX_FOREIGN_FORMS)] = ()
    unverified: Label | None = None
    quality: Quality | None = None
    witness: Witness | None = None
    images: Features | None = None
    sounds: Features | None = None
    hidden_states: HiddenStates | None = None
    speech: Speech | None = None
    dictation: Dictation | None = None
    texts: Comparison | None = None
    chat: ChatForm | None = None

    @property
    def features(self) -> Features | None:
        """Vectors of images or sounds that the decoder reads, if it does."""
        return self.sounds if self.images is None else self.images

    @property
    def media(self) -> Literal["images", "sounds"]:
        """Kind of media that the decoder reads besides text, if it has `features`."""
        return "sounds" if self.images is None else "images"

    @property
    def parts(self) -> dict[PartName, tuple[str, str]]:
        """Folders of the bundles in this bundle, and fingerprints of their manifests."""
        parts: dict[PartName, tuple[str, str]] = {}
        if self.features is not None:
            parts["media"] = SOUND if self.media == "sounds" else VISION, self.features.encoder
        if self.hidden_states is not None and self.hidden_states.head is not None:
            parts["head"] = MTP, self.hidden_states.head
        if self.texts is not None:
            parts["texts"] = TEXT, self.texts.encoder
        return parts

    @property
    def is_head(self) -> bool:
        """Whether this is a head, which reads the states of another decoder."""
        return self.hidden_states is not None and self.hidden_states.head is None

    @property
    def has_head(self) -> bool:
        """Whether the folder `mtp` holds a head that reads the states of this decoder."""
        return "head" in self.parts

    @property
    def model_kind(self) -> ModelKind:
        """Properties of this kind of bundle."""
        return KINDS[self.kind]

    @property
    def output_kind(self) -> OutputKind:
        """Properties of the output; a decoder's output is logits."""
        return OUTPUTS["logits" if self.output is None else self.output.kind]

    @property
    def takes_one(self) -> bool:
        """Whether the decoder takes only one new token per row and call (docs/adr/0026)."""
        decoder = self.graphs.get(DECODER)
        return decoder is not None and decoder.sequence == 1

    @property
    def has_windows(self) -> bool:
        """Whether a state holds only the last tokens (docs/adr/0038)."""
        return any(state.window is not None for state in self.states)

    @property
    def min_call_tokens(self) -> int:
        """Most tokens that one call must take: vectors that see each other, or 1."""
        features = self.features
        return 1 if features is None or features.attention == "causal" else features.vectors

    @property
    def adaptable_graphs(self) -> dict[str, Graph]:
        """Graphs that run with adapters; these cannot adapt the prefill's products of integers."""
        is_left_out = self.prefill_precision is not None and not self.model_kind.has_encoder
        return {
            role: graph
            for role, graph in self.graphs.items()
            if not (is_left_out and role == PREFILL)
        }

    @property
    def carried_by_maps(self) -> tuple[State, ...]:
        """States of the attention-map graph, which only has some if the decoder takes one token."""
        return self.states if self.takes_one else ()

    def state_bytes(self, update: str) -> int:
        """Bytes of all states with this update, per row or per row and token."""
        return sum(state.unit_bytes for state in self.states if state.update == update)

    @property
    def takes(self) -> str:
        """Describe the input."""
        source = self.source or TextSource(max_tokens=self.context_length)
        features = self.features
        images = "" if features is None else f", and {self.media}, {features.words}"
        texts = "" if self.texts is None else ", and texts to compare with"
        return f"{source.words}{images}{texts}"

    @property
    def gives(self) -> str:
        """Describe the output: `embeddings of 384 numbers`."""
        if self.output is not None:
            return self.output_kind.gives.format(size=self.output.size)
        return self.model_kind.gives.format(context=self.context_length)


def wrong_kind(manifest: Manifest, *, what: str, expected: str) -> BundleKindError:
    """Make the error for a request that this kind of bundle cannot serve."""
    got, use = manifest.model_kind.description, manifest.model_kind.use
    if manifest.output is not None:
        inputs = "texts" if manifest.source is None else manifest.source.medium
        output = manifest.output_kind
        got, use = f"an encoder of {inputs} that returns {output.summary}", output.use
    return BundleKindError(f"{what}: expected {expected}, got {got}. Use {use}.")
