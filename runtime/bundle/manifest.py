"""What manifest.json says of a bundle: the contract between export and runtime.

Knows fields and the values that each may have. `ortolan.runtime.bundle.manifest_file` reads and
writes them, and checks how they fit each other.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import DECODER, KINDS, OUTPUTS, ModelKind, OutputKind
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.errors import BundleKindError

__all__ = [
    "NAME",
    "SCHEMA",
    "File",
    "Graph",
    "ImageSource",
    "KindName",
    "Label",
    "Manifest",
    "Output",
    "OutputName",
    "Provenance",
    "QuantizedTensor",
    "Sha256",
    "State",
    "StateType",
    "TextSource",
    "Tokens",
    "wrong_kind",
]

NAME = "manifest.json"
"""The one file of a bundle that the manifest does not list."""

SCHEMA = 2
"""The schema this version reads and writes."""

FileName = Annotated[str, Meta(pattern=limits.FILE_NAME_PATTERN)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Label = Annotated[str, Meta(min_length=1, max_length=limits.MAX_LABEL_LENGTH)]
Form = Annotated[str, Meta(min_length=1, max_length=limits.MAX_FORM_LENGTH)]
Prompt = Annotated[str, Meta(max_length=limits.MAX_PROMPT_LENGTH)]
StateType = Literal["float32", "float16", "bfloat16", "int8"]
STATE_BYTES: Mapping[StateType, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
TokenId = Annotated[int, Meta(ge=0, lt=limits.MAX_VOCABULARY)]
KindName = Annotated[str, Meta(pattern=rf"\A({'|'.join(KINDS)})\Z")]
OutputName = Annotated[str, Meta(pattern=rf"\A({'|'.join(OUTPUTS)})\Z")]


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the bundle.

    Attributes:
        size: in bytes.
        sha256: of the whole file, 64 lower-case hexadecimal digits.
    """

    name: FileName
    size: Annotated[int, Meta(ge=0, le=limits.MAX_FILE_BYTES)]
    sha256: Sha256


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something a decoder carries from one step to the next, or reads in all of them.

    Attributes:
        input: name of the decoder's input that takes the state.
        output: name of the output that gives it: of the decoder, bound to the buffer of its
            input, or of the encoder for `source`.
        shape: sizes, `"batch"` once, and `"capacity"` once where the state grows, or `"source"`
            once where it is one of a source.
        dtype: `int8` for codes, whose scales the graph holds; only states that grow have them.
        update: `append` grows along `"capacity"`, `replace` has a fixed size, `source` is
            computed once and only read.
    """

    name: Label
    input: Label
    output: Label
    shape: tuple[int | str, ...]
    dtype: StateType
    update: Literal["append", "replace", "source"]

    @property
    def unit_bytes(self) -> int:
        """Memory of one row, and of one token where it grows."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return math.prod(sizes) * STATE_BYTES[self.dtype]


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ONNX graph.

    Attributes:
        file: its file name.
        sequence: new tokens per step; `None` for any number, 1 for exactly one.
        min_new_tokens: of a prefill graph, the fewest new tokens of a step it is used for;
            steps of fewer go to the decode graph.
    """

    file: FileName
    sequence: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)] | None = None
    min_new_tokens: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)] = 1


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ids with a meaning. Lengths are never inferred from `pad`.

    Attributes:
        start: what a text after a source begins with.
        forced_first: the first new token, where there is no choice.
        forced_last: the last new token, where the length runs out.
        suppressed: never chosen.
    """

    bos: TokenId | None = None
    eos: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_STOP_TOKENS)] = ()
    pad: TokenId | None = None
    start: TokenId | None = None
    forced_first: TokenId | None = None
    forced_last: TokenId | None = None
    suppressed: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_SUPPRESSED)] = ()


class TextSource(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="text",
):
    """An encoder's texts.

    Attributes:
        max_tokens: most tokens of one, special ones included.
        vocab_size: ids are below it, where they are others than the manifest's `vocab_size`.
        prompts: texts that the model knows before a text, by name; none where it is no embedding.
        default_prompt: the name of the one that comes before a text without another.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    vocab_size: Annotated[int, Meta(ge=1, le=limits.MAX_VOCABULARY)] | None = None
    prompts: Annotated[dict[Label, Prompt], Meta(max_length=limits.MAX_PROMPTS)] = {}
    default_prompt: Label | None = None

    @property
    def words(self) -> str:
        """What goes in, such as `texts of at most 512 tokens`."""
        named = f"; prompts: {', '.join(self.prompts)}" if self.prompts else ""
        return f"texts of at most {self.max_tokens} tokens{named}"


class ImageSource(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="image",
):
    """An encoder's images, as `(value * scale - mean) / std` of each channel.

    Attributes:
        scale: of the bytes of a pixel.
        resample: how an image of another size is brought to this one.
    """

    channels: Annotated[int, Meta(ge=1, le=4)]
    height: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
    width: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Meta(gt=0)], ...]
    scale: Annotated[float, Meta(gt=0)]
    resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

    @property
    def words(self) -> str:
        """What goes in, such as `images, RGB, of 32 by 32 pixels`."""
        colours = ("grey", "grey with alpha", "RGB", "RGBA")[self.channels - 1]
        return f"images, {colours}, of {self.height} by {self.width} pixels"


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an encoder gives.

    Attributes:
        kind: one of `ortolan.runtime.bundle.kinds.OUTPUTS`. `labels`, `tags` and `scores` differ
            in what is applied to the numbers of the graph: a softmax, a sigmoid, nothing.
        size: of the last axis.
        labels: the name of each number, for these three.
    """

    kind: OutputName
    size: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
    labels: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_LABELS)] = ()


class QuantizedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One weight that is stored in few bits.

    Attributes:
        name: of the weight in the model.
        bits: of one value.
        group: values of a row that share a scale; `None` for a whole row.
        symmetric: without zero points.
        method: how the codes were found: `rtn`, `hqq`, `gptq`, `tuned` (after `gptq`), or `kept`
            from the checkpoint.
        error: norm of what rounding changed over the norm of the weight.
    """

    name: Label
    bits: Literal[4, 8]
    group: Literal[32, 64, 128, 256] | None
    symmetric: bool
    method: Literal["rtn", "hqq", "gptq", "tuned", "kept"]
    error: Annotated[float, Meta(ge=0)]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a bundle comes from.

    Attributes:
        source_sha256: of the checkpoint that was exported.
        model_type: the family, as the checkpoint names it.
        versions: package name to version.
        accepted_keys: of the checkpoint's config, unknown to the export, whose user accepted them.
        ignored_keys: of the checkpoint's config, known not to change what the model computes.
        left_out: towers of the checkpoint for other inputs than texts, which are not in the bundle.
        calibrated_on: what weights in few bits were fitted to, in words; None where none was.
    """

    source_sha256: Sha256
    model_type: Label
    versions: Annotated[dict[Label, Label], Meta(max_length=limits.MAX_VERSIONS)]
    accepted_keys: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    ignored_keys: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    left_out: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_CONFIG_KEYS)] = ()
    calibrated_on: Label | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of manifest.json.

    Attributes:
        precision: of the weights; where it is an integer, what is not in `quantized` is float32,
            or float16 if the graphs were made for a GPU.
        prefill_precision: of the weights of the prefill graph, where they are others.
        devices: kinds of device that compute the graphs, first the one that they were made for.
        context_length: most tokens of one conversation.
        graphs: role to graph; see `ortolan.runtime.bundle.kinds`.
        weights: file names of the blobs that the graphs refer to.
        tokenizer: file name, or `None` when the bundle takes only ids.
        certificate: file name of the reference that `ortolan verify` replays.
        files: every file of the bundle but the manifest, sorted by name.
        quantized: every weight stored in few bits, those of the prefill graph included.
        source: what an encoder takes.
        output: what an encoder gives that has no decoder.
        foreign_operators: forms of nodes that ortolan does not write (`runtime.graph.vocabulary`),
            which the exported module needs.
        attention_maps: outputs of the graph `attention`, such as `decoder.0.cross`.
        unverified: why the export could not replay the certificate; `None` where it did.
        quality: how far the bundle is from the trained model; `None` where that was not measured.
    """

    schema: Literal[2]
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
    certificate: FileName
    files: Annotated[tuple[File, ...], Meta(min_length=1, max_length=limits.MAX_FILES)]
    provenance: Provenance
    prefill_precision: Literal["int8"] | None = None
    quantized: Annotated[tuple[QuantizedTensor, ...], Meta(max_length=limits.MAX_QUANTIZED)] = ()
    source: TextSource | ImageSource | None = None
    output: Output | None = None
    attention_maps: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_STATES)] = ()
    foreign_operators: Annotated[tuple[Form, ...], Meta(max_length=limits.MAX_FOREIGN_FORMS)] = ()
    unverified: Label | None = None
    quality: Quality | None = None

    @property
    def model_kind(self) -> ModelKind:
        """What bundles of this kind have in common."""
        return KINDS[self.kind]

    @property
    def output_kind(self) -> OutputKind:
        """What its outputs have in common; those of a decoder are logits."""
        return OUTPUTS["logits" if self.output is None else self.output.kind]

    @property
    def takes_one(self) -> bool:
        """Whether no step takes more than one new token of each row (docs/adr/0026)."""
        decoder = self.graphs.get(DECODER)
        return decoder is not None and decoder.sequence == 1

    @property
    def carried_by_maps(self) -> tuple[State, ...]:
        """The states of a graph of attention maps: those of a decoder that takes one token."""
        return self.states if self.takes_one else ()

    def state_bytes(self, update: str) -> int:
        """Memory of one row in all states of that update, and of one token where they grow."""
        return sum(state.unit_bytes for state in self.states if state.update == update)

    @property
    def takes(self) -> str:
        """What goes in, in words."""
        source = self.source or TextSource(max_tokens=self.context_length)
        return source.words

    @property
    def gives(self) -> str:
        """What comes out, in words, such as `embeddings of 384 numbers`."""
        if self.output is not None:
            return self.output_kind.gives.format(size=self.output.size)
        return self.model_kind.gives.format(context=self.context_length)


def wrong_kind(manifest: Manifest, *, what: str, expected: str) -> BundleKindError:
    """The error for a bundle of another kind than the request; it names what fits.

    Args:
        manifest: of the bundle.
        what: the request, such as `classify`.
        expected: what it needs, such as `a bundle that gives labels`.
    """
    got, use = manifest.model_kind.description, manifest.model_kind.use
    if manifest.output is not None:
        inputs = "images" if isinstance(manifest.source, ImageSource) else "texts"
        output = manifest.output_kind
        got, use = f"an encoder of {inputs} that gives {output.summary}", output.use
    return BundleKindError(f"{what}: expected {expected}, got {got}. Use {use}.")
