"""manifest.json: what a bundle holds, as typed data.

Knows the fields, which values they may have and how they refer to each other. Does not know
whether the files exist or hold what the manifest says (`ortolan.runtime.bundle`), nor what is
inside a graph (`ortolan.runtime.onnx_graph`).

Decoding is strict, since the manifest is the only contract between export and runtime: unknown
fields, repeated fields and numbers of the wrong kind are errors, never ignored.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.errors import ManifestError

__all__ = [
    "NAME",
    "SCHEMA",
    "File",
    "Graph",
    "Manifest",
    "Provenance",
    "QuantizedTensor",
    "State",
    "Tokens",
    "decode",
    "encode",
]

NAME = "manifest.json"
"""The one file of a bundle that the manifest does not list."""

SCHEMA = 1
"""The schema this version reads and writes."""

GRAPH_ROLES = (frozenset({"decoder"}), frozenset({"prefill", "decode"}))
"""The sets of graphs a decoder may have: unified, or split."""

FileName = Annotated[str, Meta(pattern=limits.FILE_NAME_PATTERN)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Label = Annotated[str, Meta(min_length=1, max_length=limits.MAX_LABEL_LENGTH)]
TokenId = Annotated[int, Meta(ge=0, lt=limits.MAX_VOCABULARY)]


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
    """Something a decoder carries from one step to the next.

    Attributes:
        input: name of the graph input that takes the state.
        output: name of the graph output that gives it back; both are bound to one buffer.
        shape: sizes, `"batch"` once, and `"capacity"` once where the state grows.
        update: `append` grows along `"capacity"`, `replace` has a fixed size.
    """

    name: Label
    input: Label
    output: Label
    shape: tuple[int | str, ...]
    dtype: Literal["float32", "float16"]
    update: Literal["append", "replace"]


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
    """Ids with a meaning. Lengths are never inferred from `pad`."""

    bos: TokenId | None = None
    eos: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_STOP_TOKENS)] = ()
    pad: TokenId | None = None


class QuantizedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One weight that is stored in few bits.

    Attributes:
        name: of the weight in the model.
        bits: of one value.
        group: values of a row that share a scale; `None` for a whole row.
        symmetric: without zero points.
        method: how the codes were found: `rtn`, `hqq` or `gptq`.
        error: norm of what rounding changed over the norm of the weight.
    """

    name: Label
    bits: Literal[4, 8]
    group: Literal[32, 64, 128] | None
    symmetric: bool
    method: Literal["rtn", "hqq", "gptq"]
    error: Annotated[float, Meta(ge=0)]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a bundle comes from.

    Attributes:
        source_sha256: of the checkpoint that was exported.
        model_type: the family, as the checkpoint names it.
        versions: package name to version.
    """

    source_sha256: Sha256
    model_type: Label
    versions: Annotated[dict[Label, Label], Meta(max_length=limits.MAX_VERSIONS)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of manifest.json.

    Attributes:
        precision: of the weights; what is not in `quantized` is float32 where it is an integer.
        prefill_precision: of the weights of the prefill graph, where they are others.
        devices: kinds of device the graphs were made for, such as `cpu`.
        context_length: most tokens of one conversation.
        graphs: role to graph, `decoder` (unified) or `prefill` and `decode` (split).
        weights: file names of the blobs that the graphs refer to.
        tokenizer: file name, or `None` when the bundle takes only ids.
        certificate: file name of the reference that `ortolan verify` replays.
        files: every file of the bundle but the manifest, sorted by name.
        quantized: every weight stored in few bits, those of the prefill graph included.
    """

    schema: Literal[1]
    kind: Literal["decoder"]
    precision: Literal["fp32", "fp16", "int8", "int4"]
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


class _Version(msgspec.Struct):
    """The one field that every schema has."""

    schema: int


def decode(data: bytes) -> Manifest:
    """Read a manifest and check that its parts agree.

    Args:
        data: the bytes of manifest.json.

    Raises:
        ManifestError: not UTF-8 JSON, another schema, a field unknown, missing, repeated or out
            of range, or a name that no file of the bundle has.
    """
    if len(data) > limits.MAX_MANIFEST_BYTES:
        raise _error(f"at most {limits.MAX_MANIFEST_BYTES} bytes", f"{len(data)}")
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema != SCHEMA:
            raise ManifestError(
                f"{NAME}: expected schema {SCHEMA}, got {schema}. "
                "Export the bundle again, or install the version of ortolan that made it."
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    # UnicodeDecodeError is no DecodeError; deep nesting is a RecursionError
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(
            f"{NAME}: expected a manifest of schema {SCHEMA}, got {str(error)[:300]}. {_ADVICE}"
        ) from error
    _check_repeated_fields(data)
    _check_unique("devices", manifest.devices)
    _check_files(manifest)
    _check_graphs(manifest)
    _check_states(manifest.states)
    for_rows = [tensor.name for tensor in manifest.quantized if tensor.group is None]
    in_groups = [tensor.name for tensor in manifest.quantized if tensor.group is not None]
    _check_unique("names of weights in few bits", for_rows)
    _check_unique("names of weights in few bits", in_groups)
    _check_tokens(manifest)
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Write a manifest: indented, the same bytes for the same manifest, newline at the end.

    Raises:
        ManifestError: `decode` would refuse the result.
    """
    compact = msgspec.json.encode(manifest, order="deterministic")
    data = msgspec.json.format(compact, indent=2) + b"\n"
    decode(data)
    return data


_ADVICE = "The file is damaged or was edited: copy the bundle again, or export it again."


def _error(expected: str, got: str) -> ManifestError:
    return ManifestError(f"{NAME}: expected {expected}, got {got}. {_ADVICE}")


def _check_repeated_fields(data: bytes) -> None:
    """Refuse what parsers disagree on: some keep the first of two equal fields, some the last.

    msgspec has bounded the depth before, so the parser of the standard library is safe here.
    """

    def pairs(items: list[tuple[str, object]]) -> None:
        _check_unique("field names", [name for name, _ in items])

    json.loads(data, object_pairs_hook=pairs)


def _check_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _error(f"{what} that are different from each other", f"{name!r} twice")
        seen.add(name)


def _check_files(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    for name in names:
        if name in (".", "..", NAME):
            raise _error("names of files beside the manifest", repr(name))
    _check_unique("file names", names)
    if names != sorted(names):
        raise _error("files sorted by name", ", ".join(names[:8]))
    used = [graph.file for graph in manifest.graphs.values()]
    used += [*manifest.weights, manifest.certificate]
    used += [] if manifest.tokenizer is None else [manifest.tokenizer]
    # one file with two roles would be checked by the rules of one of them
    _check_unique("files for graphs, weights, tokenizer and certificate", used)
    for name in used:
        if name not in names:
            raise _error("every file that is referred to among `files`", f"no {name!r}")
    for file in manifest.files:
        _check_size(file, manifest)


def _check_size(file: File, manifest: Manifest) -> None:
    if file.name in manifest.weights:
        return
    is_graph = any(file.name == graph.file for graph in manifest.graphs.values())
    limit = limits.MAX_GRAPH_BYTES if is_graph else limits.MAX_WHOLE_FILE_BYTES
    if file.size > limit:
        raise _error(f"at most {limit} bytes for {file.name!r}", f"{file.size}")


def _check_graphs(manifest: Manifest) -> None:
    if frozenset(manifest.graphs) not in GRAPH_ROLES:
        raise _error(
            "the graph `decoder`, or `prefill` and `decode`",
            ", ".join(sorted(manifest.graphs))[:300] or "none",
        )
    for role, graph in manifest.graphs.items():
        if graph.sequence is not None and graph.sequence > manifest.context_length:
            raise _error(
                f"a sequence within the context of {manifest.context_length} for {role!r}",
                f"{graph.sequence}",
            )


def _check_states(states: tuple[State, ...]) -> None:
    _check_unique("state names", [state.name for state in states])
    _check_unique("inputs of states", [state.input for state in states])
    _check_unique("outputs of states", [state.output for state in states])
    for state in states:
        symbols = [size for size in state.shape if isinstance(size, str)]
        sizes = [size for size in state.shape if isinstance(size, int)]
        expected = ["batch", "capacity"] if state.update == "append" else ["batch"]
        if sorted(symbols) != expected:
            raise _error(
                f"{' and '.join(expected)} once in the shape of {state.name!r}",
                f"{', '.join(symbols)[:300] or 'neither'}",
            )
        if len(state.shape) > limits.MAX_STATE_RANK:
            raise _error(
                f"at most {limits.MAX_STATE_RANK} axes for {state.name!r}", f"{len(state.shape)}"
            )
        for size in sizes:
            if not 1 <= size <= limits.MAX_DIMENSION:
                raise _error(f"sizes of at least 1 for {state.name!r}", f"{size}")


def _check_tokens(manifest: Manifest) -> None:
    tokens = manifest.tokens
    for name, ids in (("bos", [tokens.bos]), ("eos", tokens.eos), ("pad", [tokens.pad])):
        for token in ids:
            if token is not None and token >= manifest.vocab_size:
                raise _error(
                    f"an id below the vocabulary size {manifest.vocab_size} for {name!r}",
                    f"{token}",
                )
