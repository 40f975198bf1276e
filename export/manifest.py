"""The manifest of a bundle: what export knows of it, as data."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from ortolan import __version__
from ortolan.export.output import describe_files
from ortolan.export.settings import Settings
from ortolan.export.source.checkpoint import Source
from ortolan.export.trace import cache_names, cross_names, map_names
from ortolan.export.weights.store import Stored
from ortolan.modeling.config import AttentionConfig, EncoderDecoderConfig, TransformerConfig
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.bundle.manifest import Manifest, Provenance, State, StateType

_DTYPES: Mapping[torch.dtype, StateType] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""As the manifest names them."""


def describe(folder: Path, model: Source, settings: Settings, stored: Stored) -> Manifest:
    """The manifest of the files that lie in a folder."""
    packages = ("torch", "onnx", "onnx-ir", "onnxscript")
    return Manifest(
        schema=2,
        kind=settings.kind,
        precision=settings.precision,
        attention=settings.options.attention,
        devices=settings.devices,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        graphs=settings.graph_files,
        states=_states(model, settings),
        weights=(stored.blob.file.name,),
        tokens=model.tokens,
        tokenizer="tokenizer.json" if "tokenizer.json" in model.companions else None,
        certificate=runtime_certificate.JSON_NAME,
        files=describe_files(folder, (stored.blob.file,)),
        provenance=Provenance(
            source_sha256=model.sha256,
            model_type=model.config.model_type,
            versions={"ortolan": __version__, **{name: version(name) for name in packages}},
        ),
        prefill_precision=settings.options.prefill_precision,
        quantized=stored.quantized,
        source=model.takes,
        output=model.gives,
        attention_maps=tuple(map_names(model.config)) if settings.options.attention_maps else (),
        unverified=settings.unverified,
    )


def _states(model: Source, settings: Settings) -> tuple[State, ...]:
    dtype = _DTYPES[settings.dtype]
    match model.config:
        case TransformerConfig() as decoder:
            return tuple(_cache(decoder, dtype))
        case EncoderDecoderConfig(decoder=decoder):
            return (*_cache(decoder, dtype), *_source(decoder, dtype))
        case _:
            return ()


def _cache(config: TransformerConfig, dtype: StateType) -> Iterator[State]:
    """What a decoder extends, two a layer."""
    given, taken = (cache_names(prefix, config) for prefix in ("past_key_values", "present"))
    attentions = [block.attention for block in config.blocks]
    for one, other, (heads, width) in zip(given, taken, _shapes(attentions), strict=True):
        yield State(
            name=one.removeprefix("past_key_values."),
            input=one,
            output=other,
            shape=("batch", heads, "capacity", width),
            dtype=dtype,
            update="append",
        )


def _source(config: TransformerConfig, dtype: StateType) -> Iterator[State]:
    """Keys and values of a source, two a layer."""
    attentions = [block.cross_attention for block in config.blocks if block.cross_attention]
    for name, (heads, width) in zip(cross_names(config), _shapes(attentions), strict=True):
        yield State(
            name=name,
            input=name,
            output=name,
            shape=("batch", heads, "source", width),
            dtype=dtype,
            update="source",
        )


def _shapes(attentions: Iterable[AttentionConfig]) -> Iterator[tuple[int, int]]:
    """Heads and width of the keys, then of the values, of each layer."""
    for attention in attentions:
        yield attention.num_kv_heads, attention.head_dim
        yield attention.num_kv_heads, attention.value_width
