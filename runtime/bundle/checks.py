"""How the fields of a manifest must fit each other.

Knows decoded manifests. Each rule keeps something from the rest of the runtime that it would
have to ignore or to guess at.
"""

import json
import re
from collections.abc import Iterable

from ortolan.runtime import limits
from ortolan.runtime.bundle.fields import (
    GRAPH_ROLES,
    MAPS_ROLE,
    NAME,
    File,
    ImageSource,
    Manifest,
    Output,
    State,
    TextSource,
)
from ortolan.runtime.errors import ManifestError

__all__ = ["ADVICE", "check", "check_repeated_fields", "refused"]

ADVICE = "The file is damaged or was edited: copy the bundle again, or export it again."


def refused(expected: str, got: str) -> ManifestError:
    """An error about what a manifest says."""
    return ManifestError(f"{NAME}: expected {expected}, got {got}. {ADVICE}")


def check(manifest: Manifest) -> None:
    """Check that the parts of a manifest agree.

    Raises:
        ManifestError: a name that no file of the bundle has, a name or file twice, a graph,
            state, source, output or map that this kind of bundle does not have.
    """
    _check_unique("devices", manifest.devices)
    _check_files(manifest)
    _check_graphs(manifest)
    _check_states(manifest)
    for_rows = [tensor.name for tensor in manifest.quantized if tensor.group is None]
    in_groups = [tensor.name for tensor in manifest.quantized if tensor.group is not None]
    _check_unique("names of weights in few bits", for_rows)
    _check_unique("names of weights in few bits", in_groups)
    _check_tokens(manifest)
    _check_source(manifest)
    _check_output(manifest)
    _check_maps(manifest)


def check_repeated_fields(data: bytes) -> None:
    """Refuse what parsers disagree on: some keep the first of two equal fields, some the last.

    Args:
        data: JSON whose depth is bounded: the parser of the standard library is safe here.

    Raises:
        ManifestError: a field occurs twice in one object.
    """

    def pairs(items: list[tuple[str, object]]) -> None:
        _check_unique("field names", [name for name, _ in items])

    json.loads(data, object_pairs_hook=pairs)


def _check_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise refused(f"{what} that are different from each other", f"{name!r} twice")
        seen.add(name)


def _check_files(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    for name in names:
        if name in (".", "..", NAME):
            raise refused("names of files beside the manifest", repr(name))
    _check_unique("file names", names)
    if names != sorted(names):
        raise refused("files sorted by name", ", ".join(names[:8]))
    used = [graph.file for graph in manifest.graphs.values()]
    used += [*manifest.weights, manifest.certificate]
    used += [] if manifest.tokenizer is None else [manifest.tokenizer]
    # one file with two roles would be checked by the rules of one of them
    _check_unique("files for graphs, weights, tokenizer and certificate", used)
    for name in used:
        if name not in names:
            raise refused("every file that is referred to among `files`", f"no {name!r}")
    for file in manifest.files:
        _check_size(file, manifest)


def _check_size(file: File, manifest: Manifest) -> None:
    if file.name in manifest.weights:
        return
    is_graph = any(file.name == graph.file for graph in manifest.graphs.values())
    limit = limits.MAX_GRAPH_BYTES if is_graph else limits.MAX_WHOLE_FILE_BYTES
    if file.size > limit:
        raise refused(f"at most {limit} bytes for {file.name!r}", f"{file.size}")


_STEPPED = frozenset({"decoder", "prefill", "decode"})
"""Graphs that are called step by step; the others take everything at once."""


def _check_graphs(manifest: Manifest) -> None:
    roles = GRAPH_ROLES[manifest.kind]
    if frozenset(manifest.graphs) - {MAPS_ROLE} not in roles:
        raise refused(
            f"the graphs {' or '.join(' and '.join(sorted(each)) for each in roles)}",
            ", ".join(sorted(manifest.graphs))[:300] or "none",
        )
    for role, graph in manifest.graphs.items():
        steps = (graph.sequence, graph.min_new_tokens)
        if role not in _STEPPED and steps != (None, 1):
            raise refused(f"no `sequence` and no `min_new_tokens` for {role!r}", f"{steps}")
        if graph.sequence is not None and graph.sequence > manifest.context_length:
            raise refused(
                f"a sequence within the context of {manifest.context_length} for {role!r}",
                f"{graph.sequence}",
            )


_SYMBOLS = {"append": ["capacity"], "replace": [], "source": ["source"]}
"""What the shape of a state has besides its batch."""

_UPDATES = {
    "decoder": ("append", "replace"),
    "encoder": (),
    "encoder-decoder": ("append", "replace", "source"),
}
"""The states that each kind of bundle may have."""


def _check_states(manifest: Manifest) -> None:
    states = manifest.states
    _check_unique("state names", [state.name for state in states])
    _check_unique("inputs of states", [state.input for state in states])
    _check_unique("outputs of states", [state.output for state in states])
    for state in states:
        if state.update not in _UPDATES[manifest.kind]:
            raise refused(
                f"no such state in a bundle of kind {manifest.kind!r}",
                f"{state.name!r}, which is of update {state.update!r}",
            )
        _check_shape(state)
    if manifest.kind == "encoder-decoder" and all(state.update != "source" for state in states):
        raise refused("a state of update 'source': the decoder has to read its source", "none")


def _check_shape(state: State) -> None:
    symbols = [size for size in state.shape if isinstance(size, str)]
    sizes = [size for size in state.shape if isinstance(size, int)]
    expected = ["batch", *_SYMBOLS[state.update]]
    if sorted(symbols) != expected:
        raise refused(
            f"{' and '.join(expected)} once in the shape of {state.name!r}",
            f"{', '.join(symbols)[:300] or 'neither'}",
        )
    if len(state.shape) > limits.MAX_STATE_RANK:
        raise refused(
            f"at most {limits.MAX_STATE_RANK} axes for {state.name!r}", f"{len(state.shape)}"
        )
    for size in sizes:
        if not 1 <= size <= limits.MAX_DIMENSION:
            raise refused(f"sizes of at least 1 for {state.name!r}", f"{size}")


def _check_tokens(manifest: Manifest) -> None:
    tokens = manifest.tokens
    singles = ("bos", "pad", "start", "forced_first", "forced_last")
    named = [(name, [getattr(tokens, name)]) for name in singles]
    for name, ids in (*named, ("eos", tokens.eos), ("suppressed", tokens.suppressed)):
        for token in ids:
            if token is not None and token >= manifest.vocab_size:
                raise refused(
                    f"an id below the vocabulary size {manifest.vocab_size} for {name!r}",
                    f"{token}",
                )
    if (tokens.start is None) != (manifest.kind != "encoder-decoder"):
        raise refused(
            "the token `start` in a bundle of kind 'encoder-decoder', and in no other",
            f"{tokens.start} in one of kind {manifest.kind!r}",
        )


def _check_source(manifest: Manifest) -> None:
    source = manifest.source
    if (source is None) != (manifest.kind == "decoder"):
        raise refused(
            "a `source` in a bundle with an encoder, and in no other",
            f"{'none' if source is None else 'one'} in one of kind {manifest.kind!r}",
        )
    if isinstance(source, ImageSource):
        for name, values in (("mean", source.mean), ("std", source.std)):
            if len(values) != source.channels:
                raise refused(f"{source.channels} values of `{name}`", f"{len(values)}")
        if manifest.kind == "encoder" and manifest.tokenizer is not None:
            raise refused("no tokenizer where an encoder takes images", manifest.tokenizer)
    if manifest.kind != "encoder" or not isinstance(source, TextSource):
        return
    if source.max_tokens != manifest.context_length:
        raise refused(
            f"as many tokens of the source as in the context, {manifest.context_length}",
            f"{source.max_tokens}",
        )


def _check_output(manifest: Manifest) -> None:
    output = manifest.output
    if (output is None) != (manifest.kind != "encoder"):
        raise refused(
            "an `output` in a bundle of kind 'encoder', and in no other",
            f"{'none' if output is None else 'one'} in one of kind {manifest.kind!r}",
        )
    if output is None:
        return
    labels = _labels(output)
    if len(output.labels) != labels:
        raise refused(
            f"{labels} labels for {output.kind} of {output.size}", f"{len(output.labels)}"
        )
    if output.kind != "logits":
        return
    if not isinstance(manifest.source, TextSource) or output.size != manifest.vocab_size:
        raise refused(
            f"logits of the {manifest.vocab_size} tokens of a text", f"{output.size} logits"
        )


def _labels(output: Output) -> int:
    return output.size if output.kind == "labels" else 0


_MAPS = {
    "decoder": re.compile(r"decoder\.\d+\.self"),
    "encoder": re.compile(r"encoder\.\d+\.self"),
    "encoder-decoder": re.compile(r"encoder\.\d+\.self|decoder\.\d+\.(self|cross)"),
}
"""The names of the maps of each kind of bundle."""


def _check_maps(manifest: Manifest) -> None:
    maps = manifest.attention_maps
    _check_unique("attention maps", maps)
    if (MAPS_ROLE in manifest.graphs) != bool(maps):
        raise refused(f"`attention_maps` where there is a graph {MAPS_ROLE!r}", f"{len(maps)} maps")
    for name in maps:
        if not _MAPS[manifest.kind].fullmatch(name):
            raise refused(f"names of maps of a bundle of kind {manifest.kind!r}", repr(name))
