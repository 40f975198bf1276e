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
from ortolan.runtime.bundle.source import IDS, TYPES
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Inputs of the graph, and labels of the source and of tokens read and written."""

    feeds: dict[str, NDArray[Any]]
    source: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


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
    sides = _sides(opened, engine, tokenizer, text, target)
    maps = engine.attention(sides.feeds)
    queries, keys = {}, {}
    for name in manifest.attention_maps:
        count, width = maps[name].shape[-2:]
        by_query, by_key = _names(name, sides)
        queries[name] = by_query or tuple(map(str, range(count)))
        keys[name] = by_key or tuple(map(str, range(width)))
        if not np.isfinite(maps[name]).all():
            raise NumericError(f"The map {name} is not finite. Run `ortolan verify` on the bundle.")
    return AttentionMaps(
        maps={name: maps[name][0] for name in manifest.attention_maps}, queries=queries, keys=keys
    )


def _names(name: str, sides: _Sides) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of the queries and keys of a map."""
    side, _, kind = name.split(".")
    if side == "encoder":
        return sides.source, sides.source
    if kind in ("read", "write"):  # slots of a memory are numbered
        return sides.read, ()
    return (sides.written, sides.source) if kind == "cross" else (sides.read, sides.read)


def _sides(
    bundle: Bundle,
    engine: Engine,
    tokenizer: Tokenizer | None,
    text: Input,
    target: str | Sequence[int] | None,
) -> _Sides:
    manifest = bundle.manifest
    if not manifest.model_kind.has_encoder:
        ids = _ids(bundle, tokenizer, text, what="text")
        return _Sides(feeds={IDS: np.array([ids], np.int64)}, read=_labels(tokenizer, ids))
    reader = reader_of(manifest, tokenizer)
    source = reader.read(text)
    feeds = reader.feeds([source])
    feeds.pop(TYPES, None)  # a text alone has tokens of one type, which the graph of maps assumes
    names: tuple[str, ...] = ()
    if isinstance(manifest.source, AudioSource):
        seconds = [manifest.source.step_s * place for place in range(manifest.source.vectors)]
        names = tuple(f"{second:.2f}" for second in seconds)
    elif IDS in feeds:
        tokens = [int(token) for token in feeds[IDS][0]]
        _check_count(len(tokens), "text")
        names = _labels(tokenizer, tokens)
    if not manifest.model_kind.has_decoder:
        return _Sides(feeds=feeds, source=names)
    if target is None:  # the greedy output, with EOS
        limit = min(MAX_MAP_TOKENS, manifest.context_length - 1)
        written = list(Seq2Seq(bundle, engine).generate(text, max_new_tokens=limit).tokens)
    else:
        written = _ids(bundle, tokenizer, target, what="target")
    start = manifest.tokens.start
    read = [*([] if start is None else [start]), *written][: len(written)]
    return _Sides(
        feeds={**feeds, TARGET_IDS: np.array([read], np.int64)},
        source=names,
        read=_labels(tokenizer, read),
        written=_labels(tokenizer, written),
    )


def _ids(bundle: Bundle, tokenizer: Tokenizer | None, text: Any, *, what: str) -> list[int]:
    vocab_size = bundle.manifest.vocab_size
    ids = read_ids(text, tokenizer, vocab_size=vocab_size, what=what, fewest=1)
    limit = bundle.manifest.context_length
    if len(ids) > limit:
        raise ContextLengthError(
            f"{what} has {len(ids)} tokens, and the limit is {limit}. Use a shorter one."
        )
    _check_count(len(ids), what)
    return ids


def _check_count(count: int, what: str) -> None:
    if count > MAX_MAP_TOKENS:
        raise ContextLengthError(
            f"{what} has {count} tokens, and maps have at most {MAX_MAP_TOKENS}. Use a shorter one."
        )


def _labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{token}" for token in ids) if tokenizer is None else tuple(tokenizer.labels(ids))
