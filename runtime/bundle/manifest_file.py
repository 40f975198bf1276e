"""Reads and writes manifest.json, and checks that its fields fit together.

`ortolan.runtime.bundle.folder` checks the files that it lists.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import BOTH_WAYS, DECODE, MAPS_ROLE, ON_DEMAND, PREFILL, STEPPED
from ortolan.runtime.bundle.manifest import NAME, SCHEMA, Manifest, State
from ortolan.runtime.bundle.parts import LongestSide
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import ManifestError

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
    # Some parsers keep the first of repeated fields, others the last. The depth is bounded by now.
    json.loads(data, object_pairs_hook=_check_fields)
    _check(_rules(manifest))
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Write a manifest as indented JSON; equal manifests have equal bytes."""
    data = _written(manifest)
    decode(data)
    return data


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 of a manifest, which covers all files of the bundle by their hashes."""
    return hashlib.sha256(_written(manifest)).hexdigest()


def _written(manifest: Manifest) -> bytes:
    compact = msgspec.json.encode(manifest, order="deterministic")
    return msgspec.json.format(compact, indent=2) + b"\n"


# --- rules ----------------------------------------------------------------------------------------

Rules = Iterator[tuple[object, str, str]]
"""Whether a rule holds, what it expects, and what the manifest has."""


def _check(rules: Rules) -> None:
    for holds, expected, got in rules:
        if not holds:
            raise _refused(expected, got)


def _check_fields(items: list[tuple[str, object]]) -> None:
    _check(_unique("field names", [name for name, _ in items]))


def _unique(what: str, names: Iterable[str]) -> Rules:
    seen: set[str] = set()
    for name in names:
        yield name not in seen, f"unique {what}", f"{name!r} twice"
        seen.add(name)


def _rules(manifest: Manifest) -> Rules:
    """How the fields fit together, so that the runtime never has to ignore or guess."""
    cache, states = manifest.host.cache, manifest.states
    grows = any(state.update == "append" for state in states)
    yield (
        (cache is not None) == grows,
        "`host.cache` of bundles whose states grow, and only there",
        f"{cache} with {'growing' if grows else 'no growing'} states",
    )
    yield from _unique("devices", manifest.devices)
    yield from _file_rules(manifest)
    yield from _graph_rules(manifest)
    yield from _unique("state names", [state.name for state in states])
    yield from _unique("inputs of states", [state.input for state in states])
    yield from _unique("outputs of states", [state.output for state in states])
    for state in states:
        yield from _state_rules(manifest, state)
    # prefill and decode may hold one weight twice: with a scale per row, and with groups
    for by_row in (True, False):
        names = [tensor.name for tensor in manifest.quantized if (tensor.group is None) == by_row]
        yield from _unique("names of low-bit weights", names)
    yield from _kind_rules(manifest)
    yield from _token_rules(manifest)
    if manifest.source is not None:
        for expected, got in manifest.source.problems(manifest):
            yield False, expected, got
    yield from _output_rules(manifest)
    maps = manifest.attention_maps
    yield from _unique("attention maps", maps)
    yield (
        (MAPS_ROLE in manifest.graphs) == bool(maps),
        f"`attention_maps` and a graph {MAPS_ROLE!r}, or neither",
        f"{len(maps)} maps",
    )
    for name in maps:
        is_map = re.fullmatch(manifest.model_kind.maps, name)
        yield is_map, f"attention maps of the kind {manifest.kind!r}", repr(name)


def _file_rules(manifest: Manifest) -> Rules:
    names = [file.name for file in manifest.files]
    for name in names:
        is_inside = name not in (".", "..", NAME)
        yield is_inside, "names of files in the bundle's folder", repr(name)
    yield from _unique("file names", names)
    yield names == sorted(names), "files sorted by name", ", ".join(names[:8])
    graphs = [graph.file for graph in manifest.graphs.values()]
    others = (manifest.certificate, manifest.tokenizer)
    used = [*graphs, *manifest.weights, *(name for name in others if name is not None)]
    # a file with two roles would only be checked by the rules of one
    yield from _unique("files for graphs, weights, tokenizer and certificate", used)
    for name in used:
        yield name in names, f"{name!r} among `files`", "no such file"
    has_reason = manifest.certificate is not None or manifest.unverified is not None
    yield has_reason, "a certificate, or the reason in `unverified`", "neither"
    for file in manifest.files:
        limit = limits.MAX_GRAPH_BYTES if file.name in graphs else limits.MAX_WHOLE_FILE_BYTES
        fits = file.name in manifest.weights or file.size <= limit
        yield fits, f"at most {limit} bytes for {file.name!r}", f"{file.size}"


def _graph_rules(manifest: Manifest) -> Rules:
    roles, graphs = manifest.model_kind.graphs, manifest.graphs
    yield (
        graphs.keys() - ON_DEMAND in roles,
        f"the graphs {' or '.join(' and '.join(sorted(names)) for names in roles)}",
        ", ".join(sorted(graphs))[:300] or "none",
    )
    features = manifest.features
    sees = features is not None and features.attention == "both_ways"
    yield (
        (BOTH_WAYS in graphs) == sees,
        f"a graph {BOTH_WAYS!r} if and only if vectors attend {BOTH_WAYS}",
        "none" if sees else "one",
    )
    yield (
        not sees or (manifest.devices == ("cpu",) and manifest.attention == "fused"),
        "vectors that see each other in bundles of fused attention for the cpu alone",
        f"{manifest.attention} attention for {', '.join(manifest.devices)}",
    )
    yield (
        not sees or all(state.update == "append" for state in manifest.states),
        "vectors that see each other in a decoder whose states all grow",
        "others",
    )
    for role, graph in graphs.items():
        steps = (graph.sequence, graph.min_new_tokens)
        has_steps = role in STEPPED and role != BOTH_WAYS
        yield (
            has_steps or steps == (None, 1),
            f"neither `sequence` nor `min_new_tokens` for {role!r}",
            f"{steps}",
        )
    if PREFILL in graphs:
        prefill, decode = graphs[PREFILL], graphs[DECODE]
        yield prefill.sequence is None, "any number of tokens for the prefill graph", "one"
        yield (
            decode.sequence is None or prefill.min_new_tokens <= 2,
            "a prefill graph from 2 new tokens on, as the decode graph takes 1",
            f"from {prefill.min_new_tokens} on",
        )


_SYMBOLS = {"append": ["capacity"], "replace": [], "source": ["source"]}
"""Named sizes in the shape of a state, besides the batch."""


def _state_rules(manifest: Manifest, state: State) -> Rules:
    kind, grows, name = manifest.model_kind, state.update == "append", repr(state.name)
    yield (
        state.update in kind.updates,
        f"a state with an update of the kind {kind.name!r}",
        f"{state.update!r} for {name}",
    )
    symbols = [size for size in state.shape if isinstance(size, str)]
    expected = ["batch", *_SYMBOLS[state.update]]
    yield (
        sorted(symbols) == expected,
        f"{' and '.join(expected)} once in the shape of {name}",
        ", ".join(symbols) or "none",
    )
    is_first = state.shape[0] == "batch"
    yield is_first, f"the batch as the first axis of {name}", f"{state.shape[0]}"
    is_float = state.dtype != "int8"
    yield is_float or grows, f"a float type for {name}, which does not grow", "int8"
    if state.window is not None:
        yield grows, "windows of states that grow", f"one of {name}"
        devices = manifest.devices
        yield devices == ("cpu",), "windows in bundles for the cpu alone", ", ".join(devices)
        takes_prompts = not manifest.takes_one and not kind.has_encoder
        yield takes_prompts, "windows in decoders that take whole prompts", f"one of {name}"


def _kind_rules(manifest: Manifest) -> Rules:
    """Fields of some kinds are present for these kinds and absent for others."""
    kind, features, source = manifest.model_kind, manifest.features, manifest.source
    for name, value, belongs in (
        ("source", source, kind.has_encoder),
        ("output", manifest.output, not kind.has_decoder),
        ("start", manifest.tokens.start, kind.reads_source),
    ):
        yield (
            (value is not None) == belongs,
            f"{'a' if belongs else 'no'} `{name}` in a bundle of kind {kind.name!r}",
            "none" if value is None else "one",
        )
    yield (
        not kind.reads_source or any(state.update == "source" for state in manifest.states),
        "a state with the update 'source', for the decoder to read",
        "none",
    )
    takes_prompts = not kind.has_encoder and not manifest.takes_one
    tiles = None if features is None else features.tiles
    is_grid = features is not None and features.positions == "grid"
    embeds = (
        source is not None
        and source.medium == "images"
        and manifest.output_kind.name == "embedding"
    )
    hears = isinstance(source, AudioSource)
    for present, fits, expected in (
        (features, takes_prompts, f"`{manifest.media}` in a decoder that takes whole prompts"),
        (
            is_grid,
            tiles is None and not manifest.sounds,
            "whole images, not tiles or sounds, as grids",
        ),
        (manifest.speech, hears, "`speech` in a bundle that reads sounds"),
        (manifest.images, not manifest.sounds, "either `images` or `sounds`"),
        (manifest.dictation, manifest.sounds, "`dictation` in a decoder that reads sounds"),
        (
            manifest.hidden_states,
            takes_prompts and features is None,
            "`hidden_states` in a decoder of text alone",
        ),
        (manifest.texts, embeds, "`texts` in an encoder that embeds images"),
        (manifest.chat, features is None and kind.name == "decoder", "`chat` in a decoder of text"),
    ):
        yield not present or fits, expected, "one of another kind"
    if tiles is not None and not isinstance(tiles.grid, LongestSide):
        least, most = tiles.grid.least, tiles.grid.most
        yield least <= most, "`least` tiles up to `most`", f"{least} and {most}"


def _token_rules(manifest: Manifest) -> Rules:
    tokens, features, speech = manifest.tokens, manifest.features, manifest.speech
    named: dict[str, Iterable[int | None]] = {
        name: [getattr(tokens, name)]
        for name in ("bos", "pad", "start", "forced_first", "forced_last")
    }
    if features is not None:
        named[f"{manifest.media}.token"] = [features.token]
    if speech is not None:
        # the last token of time is as late as the sound ends
        last = manifest.source.vectors if isinstance(manifest.source, AudioSource) else 0
        named |= {
            "speech.languages": speech.languages.values(),
            "speech.tasks": speech.tasks.values(),
            "speech.no_timestamps": [speech.no_timestamps],
            "speech.first_timestamp": [speech.first_timestamp + last],
        }
    for name in ("suppressed_first", "opening", "eos", "suppressed"):
        named[name] = getattr(tokens, name)
    if manifest.chat is not None:
        named |= {"chat.ends": manifest.chat.ends, "chat.control": manifest.chat.control}
    size = manifest.vocab_size
    for name, ids in named.items():
        for token in ids:
            fits = token is None or token < size
            yield fits, f"an id below {size}, the vocabulary size, for {name!r}", f"{token}"


def _output_rules(manifest: Manifest) -> Rules:
    output, kind, vocabulary = manifest.output, manifest.output_kind, manifest.vocab_size
    if output is None:
        return
    labels = 0 if kind.scores is None else output.size
    is_named = kind.may_be_named and len(output.labels) == output.size
    yield (
        len(output.labels) == labels or is_named,
        f"{labels} labels for {output.kind} of {output.size}",
        f"{len(output.labels)}",
    )
    yield (
        output.kind != "spans" or output.size == 2,
        "2 labels for spans, of the start and the end",
        f"{output.size}",
    )
    for is_meant, source, words in (
        (kind.may_be_named, WaveSource, f"a wave and {vocabulary} logits per vector"),
        (output.kind == "logits", TextSource, f"a text and {vocabulary} logits per token"),
    ):
        fits = isinstance(manifest.source, source) and output.size == vocabulary
        yield not is_meant or fits, words, f"{output.size} logits"
    has_blank = manifest.tokens.pad is not None
    yield not is_named or has_blank, "the blank of named symbols in `tokens.pad`", "none"
