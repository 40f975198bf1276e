"""Attention maps of a bundle exported with them: which token attends to which.

The graph `attention` computes them; this module labels queries and keys with tokens.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.interface import TARGET_IDS
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.bundle.source import IDS, TYPES, Feeds
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import InputError, NumericError
from ortolan.runtime.inputs.ids import check_count
from ortolan.runtime.inputs.input_reader import Input
from ortolan.runtime.inputs.readers import reader_of
from ortolan.runtime.inputs.tokenizer import Tokenizer, open_tokenizer, read_ids
from ortolan.runtime.limits import MAX_MAP_TOKENS
from ortolan.runtime.seq2seq import Seq2Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaps:
    """Attention of every layer and head for one text.

    Attributes:
        maps: name, such as `decoder.0.cross`, to float32 `(heads, queries, keys)`, rows sum to 1.
        queries: name to a label for each query.
        keys: name to a label for each key.
    """

    maps: dict[str, NDArray[np.float32]]
    queries: dict[str, tuple[str, ...]]
    keys: dict[str, tuple[str, ...]]


Labels = dict[str, tuple[str, ...]]
"""Labels of the `source` and of tokens `read` and `written`; others are numbered."""

_AXES = {"self": ("read", "read"), "cross": ("written", "source")}
"""Labels of queries and keys in a decoder; slots of a memory are numbered."""


def attention_maps(
    bundle: Bundle | str | os.PathLike[str],
    text: Input,
    *,
    target: str | Sequence[int] | None = None,
    threads: int | None = None,
) -> AttentionMaps:
    """Compute which tokens each token of a text attends to.

    Queries are labeled with the token read at their position; in `cross` maps, from a decoder to
    its source, with the token written there. Patches of images are numbered; vectors of sounds have
    their seconds.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    manifest = opened.manifest
    if MAPS_ROLE not in manifest.graphs:
        raise InputError(
            "This bundle has no attention maps. Export the checkpoint with --attention-maps."
        )
    if target is not None and not manifest.model_kind.reads_source:
        raise InputError(
            f"target is for encoder-decoders, and this bundle is of kind {manifest.kind!r}."
        )
    tokenizer = open_tokenizer(opened)
    engine = Engine(opened, threads=threads)
    feeds, labels = _labeled(opened, engine, tokenizer, text, target)
    maps = engine.attention(feeds)
    queries, keys = {}, {}
    for name in manifest.attention_maps:
        side, _, kind = name.split(".")
        rows, columns = ("source", "source") if side == "encoder" else _AXES.get(kind, ("read", ""))
        count, width = maps[name].shape[-2:]
        queries[name] = labels.get(rows) or tuple(map(str, range(count)))
        keys[name] = labels.get(columns) or tuple(map(str, range(width)))
        if not np.isfinite(maps[name]).all():
            raise NumericError(f"The map {name} is not finite. Run `ortolan verify` on the bundle.")
    return AttentionMaps(
        maps={name: maps[name][0] for name in manifest.attention_maps}, queries=queries, keys=keys
    )


def _labeled(
    bundle: Bundle,
    engine: Engine,
    tokenizer: Tokenizer | None,
    text: Input,
    target: str | Sequence[int] | None,
) -> tuple[Feeds, Labels]:
    """Inputs of the graph, and the labels of its axes."""
    manifest, limit = bundle.manifest, min(MAX_MAP_TOKENS, bundle.manifest.context_length)

    def ids_of(value: Any, what: str) -> list[int]:
        size = manifest.vocab_size
        return read_ids(value, tokenizer, vocab_size=size, what=what, fewest=1, most=limit)

    def labels_of(ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(str, ids)) if tokenizer is None else tuple(tokenizer.labels(ids))

    if manifest.source is None:
        ids = ids_of(text, "text")
        return {IDS: np.array([ids], np.int64)}, {"read": labels_of(ids)}
    reader = reader_of(manifest, tokenizer)
    feeds = reader.feeds([reader.read(text)])
    feeds.pop(TYPES, None)  # a text alone has tokens of one type, which the graph of maps assumes
    labels: Labels = {}
    if isinstance(manifest.source, AudioSource):
        seconds = [manifest.source.step_s * place for place in range(manifest.source.vectors)]
        labels["source"] = tuple(f"{second:.2f}" for second in seconds)
    elif IDS in feeds:
        tokens = feeds[IDS][0].tolist()
        check_count(tokens, "text", most=MAX_MAP_TOKENS)
        labels["source"] = labels_of(tokens)
    if not manifest.model_kind.has_decoder:
        return feeds, labels
    if target is None:  # the greedy output, with EOS
        most = min(MAX_MAP_TOKENS, manifest.context_length - 1)
        written = list(Seq2Seq(bundle, engine).generate(text, max_new_tokens=most).tokens)
    else:
        written = ids_of(target, "target")
    start = manifest.tokens.start
    read = [*([] if start is None else [start]), *written][: len(written)]
    labels |= {"read": labels_of(read), "written": labels_of(written)}
    return feeds | {TARGET_IDS: np.array([read], np.int64)}, labels
