"""Reads and writes manifest.json, and checks that its fields fit together.

`ortolan.runtime.bundle.folder` checks the files that it lists.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import BOTH_WAYS, MAPS_ROLE, ON_DEMAND, STEPPED
from ortolan.runtime.bundle.manifest import NAME, SCHEMA, File, Manifest, Source, Speech, State
from ortolan.runtime.bundle.parts import ClosestShape, Features, Oversized, Tiles
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import ManifestError

__all__ = ["NAME", "decode", "encode", "fingerprint"]

_ADVICE = "The file is damaged or was edited: copy the bundle again, or export it again."


def _refused(expected: str, got: str) -> ManifestError:
    return ManifestError(f"{NAME}: expected {expected}, got {got}. {_ADVICE}")


class _Version(msgspec.Struct):
    """The only field that every schema has."""

    schema: int


def decode(data: bytes) -> Manifest:
    """Read a manifest and check that its fields fit together."""
    if len(data) > limits.MAX_MANIFEST_BYTES:
        raise _refused(f"at most {limits.MAX_MANIFEST_BYTES} bytes", f"{len(data)}")
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema != SCHEMA:
            raise ManifestError(
                f"{NAME}: expected schema {SCHEMA}, got {schema}. "
                "Export the bundle again, or install the version of Ortolan that made it."
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    # UnicodeDecodeError is not a DecodeError; deep nesting raises RecursionError
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(
            f"{NAME} is not a manifest of schema {SCHEMA}: {str(error)[:300]}. {_ADVICE}"
        ) from error
    _check_repeated_fields(data)
    _check(manifest)
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Write a manifest as indented JSON; equal manifests have equal bytes."""
    compact = msgspec.json.encode(manifest, order="deterministic")
    data = msgspec.json.format(compact, indent=2) + b"\n"
    decode(data)
    return data


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 of a manifest, which covers all files of the bundle by their hashes."""
    return hashlib.sha256(encode(manifest)).hexdigest()


# --- rules ----------------------------------------------------------------------------------------


def _check(manifest: Manifest) -> None:
    """Check that the fields fit together, so that the runtime never has to ignore or guess."""
    _check_host(manifest)
    _check_unique("devices", manifest.devices)
    _check_files(manifest)
    _check_graphs(manifest)
    _check_states(manifest)
    # prefill and decode may hold one weight twice: with a scale per row, and with groups
    for by_row in (True, False):
        names = [tensor.name for tensor in manifest.quantized if (tensor.group is None) == by_row]
        _check_unique("names of low-bit weights", names)
    _check_kind(manifest)
    _check_tokens(manifest)
    for expected, got in () if manifest.source is None else manifest.source.problems(manifest):
        raise _refused(expected, got)
    _check_output(manifest)
    _check_maps(manifest)


def _check_host(manifest: Manifest) -> None:
    cache = manifest.host.cache
    grows = any(state.update == "append" for state in manifest.states)
    if (cache is not None) != grows:
        raise _refused(
            "`host.cache` of bundles whose states grow, and only there",
            f"{cache} with {'growing' if grows else 'no growing'} states",
        )


def _check_repeated_fields(data: bytes) -> None:
    """Reject repeated fields: some parsers keep the first, others the last.

    The depth of the JSON is bounded by now, so the standard library's parser is safe.
    """

    def check(items: list[tuple[str, object]]) -> None:
        _check_unique("field names", [name for name, _ in items])

    json.loads(data, object_pairs_hook=check)


def _check_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _refused(f"unique {what}", f"{name!r} twice")
        seen.add(name)


def _check_files(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    for name in names:
        if name in (".", "..", NAME):
            raise _refused("names of files in the bundle's folder", repr(name))
    _check_unique("file names", names)
    if names != sorted(names):
        raise _refused("files sorted by name", ", ".join(names[:8]))
    used = [graph.file for graph in manifest.graphs.values()]
    used += manifest.weights
    used += [name for name in (manifest.certificate, manifest.tokenizer) if name is not None]
    # a file with two roles would only be checked by the rules of one
    _check_unique("files for graphs, weights, tokenizer and certificate", used)
    for name in used:
        if name not in names:
            raise _refused(f"{name!r} among `files`", "no such file")
    if manifest.certificate is None and manifest.unverified is None:
        raise _refused("a certificate, or the reason in `unverified`", "neither")
    for file in manifest.files:
        _check_size(file, manifest)


def _check_size(file: File, manifest: Manifest) -> None:
    if file.name in manifest.weights:
        return
    is_graph = any(file.name == graph.file for graph in manifest.graphs.values())
    limit = limits.MAX_GRAPH_BYTES if is_graph else limits.MAX_WHOLE_FILE_BYTES
    if file.size > limit:
        raise _refused(f"at most {limit} bytes for {file.name!r}", f"{file.size}")


def _check_graphs(manifest: Manifest) -> None:
    roles = manifest.model_kind.graphs
    if frozenset(manifest.graphs) - ON_DEMAND not in roles:
        raise _refused(
            f"the graphs {' or '.join(' and '.join(sorted(names)) for names in roles)}",
            ", ".join(sorted(manifest.graphs))[:300] or "none",
        )
    _check_both_ways(manifest)
    for role, graph in manifest.graphs.items():
        steps = (graph.sequence, graph.min_new_tokens)
        if (role not in STEPPED or role == BOTH_WAYS) and steps != (None, 1):
            raise _refused(f"neither `sequence` nor `min_new_tokens` for {role!r}", f"{steps}")
        if graph.sequence is not None and graph.sequence > manifest.context_length:
            raise _refused(
                f"a sequence within the context of {manifest.context_length} for {role!r}",
                f"{graph.sequence}",
            )


def _check_both_ways(manifest: Manifest) -> None:
    """Check that vectors see each other if and only if there is a graph for it."""
    features = manifest.features
    sees = features is not None and features.attention == "both_ways"
    if (BOTH_WAYS in manifest.graphs) != sees:
        raise _refused(
            f"a graph {BOTH_WAYS!r} if and only if vectors attend {BOTH_WAYS}",
            f"{'one' if not sees else 'none'}",
        )
    if not sees:
        return
    if manifest.devices != ("cpu",) or manifest.attention != "fused":
        raise _refused(
            "vectors that see each other in bundles of fused attention for the cpu alone",
            f"{manifest.attention} attention for {', '.join(manifest.devices)}",
        )
    if any(state.update != "append" for state in manifest.states):
        raise _refused("vectors that see each other in a decoder whose states all grow", "others")


_SYMBOLS = {"append": ["capacity"], "replace": [], "source": ["source"]}
"""Named sizes in the shape of a state, besides the batch."""


def _check_states(manifest: Manifest) -> None:
    states, kind = manifest.states, manifest.model_kind
    _check_unique("state names", [state.name for state in states])
    _check_unique("inputs of states", [state.input for state in states])
    _check_unique("outputs of states", [state.output for state in states])
    for state in states:
        if state.update not in kind.updates:
            raise _refused(
                f"a state with an update of the kind {kind.name!r}",
                f"{state.update!r} for {state.name!r}",
            )
        _check_shape(state)
        if state.window is not None:
            _check_window(manifest, state)
    if kind.reads_source and all(state.update != "source" for state in states):
        raise _refused("a state with the update 'source', for the decoder to read", "none")


def _check_shape(state: State) -> None:
    symbols = [size for size in state.shape if isinstance(size, str)]
    sizes = [size for size in state.shape if isinstance(size, int)]
    expected = ["batch", *_SYMBOLS[state.update]]
    if sorted(symbols) != expected:
        raise _refused(
            f"{' and '.join(expected)} once in the shape of {state.name!r}",
            f"{', '.join(symbols)[:300] or 'none'}",
        )
    if len(state.shape) > limits.MAX_STATE_RANK:
        raise _refused(
            f"at most {limits.MAX_STATE_RANK} axes for {state.name!r}", f"{len(state.shape)}"
        )
    if state.dtype == "int8" and state.update != "append":
        raise _refused(f"a float type for {state.name!r}, which does not grow", "int8")
    for size in sizes:
        if not 1 <= size <= limits.MAX_DIMENSION:
            raise _refused(f"sizes of at least 1 for {state.name!r}", f"{size}")


def _check_window(manifest: Manifest, state: State) -> None:
    if state.update != "append":
        raise _refused("windows of states that grow", f"one of {state.name!r}")
    if manifest.devices != ("cpu",):
        raise _refused("windows in bundles for the cpu alone", ", ".join(manifest.devices))
    if manifest.takes_one or manifest.model_kind.has_encoder:
        raise _refused("windows in decoders that take whole prompts", f"one of {state.name!r}")


def _check_kind(manifest: Manifest) -> None:
    """Check that fields of some kinds are present for these kinds and absent for others."""
    kind = manifest.model_kind
    for name, value, belongs in (
        ("source", manifest.source, kind.has_encoder),
        ("output", manifest.output, not kind.has_decoder),
        ("start", manifest.tokens.start, kind.reads_source),
    ):
        if (value is not None) != belongs:
            raise _refused(
                f"{'a' if belongs else 'no'} `{name}` in a bundle of kind {kind.name!r}",
                "none" if value is None else "one",
            )
    if manifest.features is not None and (kind.has_encoder or manifest.takes_one):
        raise _refused(
            f"`{manifest.media}` in a decoder that takes whole prompts", "one of another kind"
        )
    match manifest.features:
        case Features(tiles=Tiles(grid=ClosestShape(least=a, most=b) | Oversized(least=a, most=b))):
            if a > b:
                raise _refused("`least` tiles up to `most`", f"{a} and {b}")
    features = manifest.features
    is_whole = features is None or (features.tiles is None and not manifest.sounds)
    if features is not None and features.positions == "grid" and not is_whole:
        raise _refused("whole images as grids", "tiles or sounds")
    if manifest.speech is not None and not isinstance(manifest.source, AudioSource):
        raise _refused("`speech` in a bundle that reads sounds", "one of another kind")
    if manifest.images and manifest.sounds:
        raise _refused("`images` or `sounds`", "both")
    if manifest.dictation and not manifest.sounds:
        raise _refused("`dictation` in a decoder that reads sounds", "one of another kind")
    if manifest.hidden_states is not None and (
        kind.has_encoder or manifest.takes_one or manifest.features is not None
    ):
        raise _refused("`hidden_states` in a decoder of text alone", "one of another kind")
    if manifest.texts is not None and not (
        manifest.source is not None
        and manifest.source.medium == "images"
        and manifest.output_kind.name == "embedding"
    ):
        raise _refused("`texts` in an encoder that embeds images", "one of another kind")


def _check_tokens(manifest: Manifest) -> None:
    tokens = manifest.tokens
    singles = ("bos", "pad", "start", "forced_first", "forced_last")
    named: list[tuple[str, Sequence[int | None]]]
    named = [(name, [getattr(tokens, name)]) for name in singles]
    features = manifest.features
    if features is not None:
        named.append((f"{manifest.media}.token", [features.token]))
    if manifest.speech is not None:
        named += _named_speech(manifest.speech, manifest.source)
    named.append(("suppressed_first", tokens.suppressed_first))
    named.append(("opening", tokens.opening))
    for name, ids in (*named, ("eos", tokens.eos), ("suppressed", tokens.suppressed)):
        for token in ids:
            if token is not None and token >= manifest.vocab_size:
                raise _refused(
                    f"an id below {manifest.vocab_size}, the vocabulary size, for {name!r}",
                    f"{token}",
                )


def _named_speech(speech: Speech, source: Source | None) -> list[tuple[str, Sequence[int | None]]]:
    """Tokens of a transcription; the last one of time is as late as the sound ends."""
    last = source.vectors if isinstance(source, AudioSource) else 0
    return [
        ("speech.languages", [*speech.languages.values()]),
        ("speech.tasks", [*speech.tasks.values()]),
        ("speech.no_timestamps", [speech.no_timestamps]),
        ("speech.first_timestamp", [speech.first_timestamp + last]),
    ]


def _check_output(manifest: Manifest) -> None:
    output = manifest.output
    if output is None:
        return
    kind = manifest.output_kind
    labels = 0 if kind.scores is None else output.size
    is_named = kind.may_be_named and len(output.labels) == output.size
    if len(output.labels) != labels and not is_named:
        raise _refused(
            f"{labels} labels for {output.kind} of {output.size}", f"{len(output.labels)}"
        )
    if output.kind == "spans" and output.size != 2:
        raise _refused("2 labels for spans, of the start and the end", f"{output.size}")
    of_symbols = isinstance(manifest.source, WaveSource) and output.size == manifest.vocab_size
    if kind.may_be_named and not of_symbols:
        raise _refused(
            f"a wave and {manifest.vocab_size} logits per vector", f"{output.size} logits"
        )
    if is_named and manifest.tokens.pad is None:
        raise _refused("the blank of named symbols in `tokens.pad`", "none")
    of_tokens = isinstance(manifest.source, TextSource) and output.size == manifest.vocab_size
    if output.kind == "logits" and not of_tokens:
        raise _refused(
            f"a text and {manifest.vocab_size} logits per token", f"{output.size} logits"
        )


def _check_maps(manifest: Manifest) -> None:
    maps = manifest.attention_maps
    _check_unique("attention maps", maps)
    if (MAPS_ROLE in manifest.graphs) != bool(maps):
        raise _refused(
            f"`attention_maps` and a graph {MAPS_ROLE!r}, or neither", f"{len(maps)} maps"
        )
    for name in maps:
        if not re.fullmatch(manifest.model_kind.maps, name):
            raise _refused(f"attention maps of the kind {manifest.kind!r}", repr(name))
