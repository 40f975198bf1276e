"""Opens a model of `ortolan.modeling`: live, or the checkpoint of a family.

Weights and tables have the names of the module. Those of an encoder-decoder begin with `encoder.`,
`decoder.` or `shared.`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Companion, Exportable, Origin
from ortolan.export.source.companions import TOKENIZER, companions_of, tokenizer_of
from ortolan.export.source.context import context_notes, sparse_notes
from ortolan.export.source.ctc_symbols import NO_SYMBOLS, ctc_symbols
from ortolan.export.source.dictation import DICTATIONS
from ortolan.export.source.encoder_tokens import has_types, padding_id
from ortolan.export.source.forward import cached, forward_of
from ortolan.export.source.image_processor import Processor, read_processor
from ortolan.export.source.interface import output_of, source_of
from ortolan.export.source.patches import patch_source, size_notes
from ortolan.export.source.preprocessing import processed_size
from ortolan.export.source.special_tokens import special_tokens
from ortolan.export.source.speech_tokens import speech_tokens
from ortolan.export.source.tiles import WRAPPINGS, tiles_of
from ortolan.export.trace.attention_maps import map_names, trace_attention_maps
from ortolan.export.trace.decoder import cache_states, trace_decoder
from ortolan.export.trace.encoder import trace_encoder
from ortolan.export.trace.encoder_decoder import (
    source_states,
    trace_source_encoder,
    trace_target_decoder,
)
from ortolan.export.trace.sides import Sides, sides_of
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.folder import (
    default_context,
    empty_model,
    limit_context,
    open_weights,
    read_config_and_keys,
)
from ortolan.modeling.checkpoint.sentence_head import max_tokens
from ortolan.modeling.checkpoint.text_tower import FEATURE_ATTENTION, FEATURE_TOKEN
from ortolan.modeling.config import (
    ChunkedAudioInput,
    CtcHead,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeatureAttention,
    FeatureHead,
    GridInput,
    ModelConfig,
    PatchInput,
    StackConfig,
    TokenInput,
    WaveInput,
)
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.layers.positions import tables
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.modeling.weights import Weights, module_weights
from ortolan.runtime.bundle.kinds import ENCODER, MAPS_ROLE, STEPPED
from ortolan.runtime.bundle.manifest import Graph, State, StateType, Tokens
from ortolan.runtime.bundle.parts import SOUND, VISION, Features
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

C = TypeVar("C", bound=ModelConfig)

Tracer = Callable[..., ir.Model]

UNBUILT = "0" * 64
"""Fingerprint of an encoder or a head that is not exported yet."""

TRACERS: Mapping[str, Mapping[str, Tracer]] = {
    "decoder": {MAPS_ROLE: trace_attention_maps, **dict.fromkeys(STEPPED, trace_decoder)},
    "encoder": {MAPS_ROLE: trace_attention_maps, ENCODER: trace_encoder},
    "encoder-decoder": {
        MAPS_ROLE: trace_attention_maps,
        ENCODER: trace_source_encoder,
        **dict.fromkeys(STEPPED, trace_target_decoder),
    },
}
"""The tracer of every graph, by kind of model and role."""


def open_model(
    model: TransformerModel, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a live `DecoderModel`, `EncoderModel` or `EncoderDecoderModel`."""
    # Nothing says how many vectors the encoder of a live module gives.
    config = replace(model.config, feature_token_id=None)
    origin = Origin(model_type=config.model_type, sha256=cache(partial(module_sha256, model)))
    processor = _processor(config, None)
    return _describe(
        config, max_context, origin, module_weights(model), processor, tokenizer=tokenizer
    )


def open_family(
    config: ModelConfig,
    keys: ConfigKeys,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
) -> Exportable:
    """Open a checkpoint of a family, with the encoder of the media that its decoder reads."""
    processor = _processor(config, checkpoint.folder)
    config = _sized(config, processor)
    model = _open(config, keys, checkpoint, processor, tokenizer=tokenizer, max_context=max_context)
    if checkpoint.media is None:
        return model
    return _reading(model, config, checkpoint.media, checkpoint.values)


def _open(
    config: ModelConfig,
    keys: ConfigKeys,
    checkpoint: Checkpoint,
    processor: Processor | None,
    *,
    tokenizer: str | Path | None = None,
    max_context: int | None = None,
) -> Exportable:
    module = empty_model(config)
    return _describe(
        config,
        _max_tokens(config, checkpoint.folder) if max_context is None else max_context,
        Origin.of_checkpoint(checkpoint, config.model_type, keys),
        open_weights(checkpoint, config, module),
        processor,
        module=module,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
    )


def _reading(
    model: Exportable, text: ModelConfig, tower: Checkpoint, values: Mapping[str, object]
) -> Exportable:
    """A decoder with the encoder of the images or sounds that it reads."""
    config, keys = read_config_and_keys(tower, EncoderConfig)
    processor = _processor(config, tower.folder)
    config, token = _sized(config, processor), values[FEATURE_TOKEN]
    if not isinstance(config.head, FeatureHead) or not isinstance(token, int):
        raise TypeError("expected an encoder of vectors for a decoder")
    features = Features(
        token=token,
        size=config.head.width,
        vectors=config.vectors,
        encoder=UNBUILT,
        tiles=tiles_of(config, processor, tower.folder),
        wrapping=WRAPPINGS.get(config.model_type),
        attention=cast(FeatureAttention, values.get(FEATURE_ATTENTION, "causal")),
        positions="grid" if isinstance(text, DecoderConfig) and text.has_axes else "sequence",
    )
    encoder = _open(config, keys, tower, processor)
    return replace(
        model,
        features=features,
        parts={SOUND if isinstance(encoder.source, ChunkedSource) else VISION: encoder},
        dictation=DICTATIONS.get(config.model_type),
        notes=(*size_notes(config, processor), *model.notes),
    )


def _processor(config: ModelConfig, folder: Path | None) -> Processor | None:
    """The image processor of an encoder of images."""
    encoder = config.encoder if isinstance(config, EncoderDecoderConfig) else config
    match encoder:
        case EncoderConfig(input=PatchInput() | GridInput() as source):
            return read_processor(source, folder, config.model_type)
        case _:
            return None


def _sized(config: C, processor: Processor | None) -> C:
    """An encoder of images of the size, or with the most patches, of its image processor."""
    match config, processor:
        case EncoderConfig(input=GridInput()) as encoder, Processor():
            patches = patch_source(encoder, processor).patches
            return replace(config, context_length=patches)
        case EncoderConfig(input=PatchInput(), is_resizable=True) as encoder, Processor():
            size = processed_size(processor)
            return config if size is None else cast(C, encoder.resized(*size))
        case _:
            return config


def trace_graph(config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a bundle."""
    sides = sides_of(config)
    tracer = TRACERS[sides.kind].get(role)
    if tracer is None:
        raise ValueError(f"{role}: no graph of {type(config).__name__}")
    if role == MAPS_ROLE and not map_names(sides):
        raise OptionError("attention_maps: this model has no attention. Leave it out.")
    if role == MAPS_ROLE and isinstance(sides.media, WaveInput | ChunkedAudioInput | GridInput):
        raise OptionError(
            "attention_maps: not supported for sounds of any length and images of any proportions. "
            "Leave it out."
        )
    fixed = {"sequence": graph.sequence} if role in STEPPED else {}
    return tracer(config, dtype=dtype, **fixed)


def _describe(
    config: ModelConfig,
    max_context: int | None,
    origin: Origin,
    weights: Weights,
    processor: Processor | None,
    *,
    tokenizer: str | Path | None,
    checkpoint: Checkpoint | None = None,
    module: TransformerModel | None = None,
) -> Exportable:
    """Describe a model to the export; `module` is the empty one of the whole context."""
    limited = limit_context(config, max_context)
    sides, folder = sides_of(limited), origin.folder
    has_vocabulary = sides.media is None or sides.decoder is not None
    companions, library = _text_files(checkpoint, tokenizer, sides, has_vocabulary=has_vocabulary)
    files = _folder_of(folder, tokenizer) if TOKENIZER in companions else None
    limited = _typed(limited, files)
    sides = sides_of(limited)
    padding = _padding(config, library, files)
    source = source_of(sides, folder, processor, padding=padding)
    has_symbols = sides.encoder is not None and isinstance(sides.encoder.head, CtcHead)
    symbols = ctc_symbols(folder, sides.vocab_size) if has_symbols else NO_SYMBOLS
    tokens = _tokens(config, sides, folder) if has_vocabulary else Tokens(pad=symbols.blank)
    speech, opening = speech_tokens(folder, source, vocab_size=sides.vocab_size)
    computed = _computed(sides)
    module = empty_model(limited) if module is None or limited != config else module
    for name, table in computed.items():
        parent, _, buffer = name.rpartition(".")
        module.get_submodule(parent).register_buffer(buffer, table, persistent=False)
    last = limited.switches_after if isinstance(limited, StackConfig) else None
    reach = sides_of(config).context_length
    return Exportable(
        kind=sides.kind,
        origin=origin,
        context_length=sides.outputs,
        vocab_size=sides.vocab_size,
        source_vocab_size=sides.source_vocab_size,
        module=module.eval(),
        forward=partial(forward_of(config), module),
        weights=weights,
        tables=computed,
        trace=lambda role, graph, dtype: trace_graph(limited, role, graph, dtype=dtype),
        states=lambda dtype: tuple(_states(sides, dtype)),
        maps=map_names(sides),
        companions=companions,
        tokens=msgspec.structs.replace(tokens, opening=opening),
        tokenizer=library,
        source=source,
        output=output_of(sides.encoder, symbols.texts)
        if sides.encoder and not sides.decoder
        else None,
        cached=partial(cached, module) if isinstance(module, DecoderModel) else None,
        speech=speech,
        switches_after=last,
        notes=(
            *context_notes(sides.outputs, switches_after=last, reach=reach),
            *sparse_notes(limited),
        ),
    )


def _text_files(
    checkpoint: Checkpoint | None,
    tokenizer: str | Path | None,
    sides: Sides,
    *,
    has_vocabulary: bool,
) -> tuple[dict[str, Companion], Tokenizer | None]:
    # One tokenizer serves both sides of an encoder-decoder: its ids must fit the smaller.
    fewest = min(sides.vocab_size, sides.source_vocab_size)
    companions = companions_of(
        checkpoint,
        tokenizer,
        vocab_size=fewest,
        has_vocabulary=has_vocabulary,
        has_decoder=sides.decoder is not None,
    )
    return companions, tokenizer_of(companions, fewest)


def _folder_of(folder: Path | None, tokenizer: str | Path | None) -> Path | None:
    """The folder of the tokenizer's files."""
    path = folder if tokenizer is None else Path(tokenizer)
    return path.parent if path is not None and path.is_file() else path


def module_sha256(module: torch.nn.Module) -> str:
    """A hash of a live module's config and weights."""
    digest = new_sha256(repr(getattr(module, "config", module)).encode())
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        values = parameter.detach().cpu().contiguous().reshape(-1)  # a scalar has no bytes
        digest.update(values.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


def _computed(sides: Sides) -> dict[str, Tensor]:
    """The tables of both sides, by the names of initializers."""
    return {
        f"{prefix}{name}": table
        for prefix, stack in sides.stacks.items()
        for name, table in tables(stack).items()
    }


def _tokens(config: ModelConfig, sides: Sides, folder: Path | None) -> Tokens:
    start = config.decoder_start_token_id if isinstance(config, EncoderDecoderConfig) else None
    own = Tokens(
        bos=config.bos_token_id, eos=config.eos_token_ids, pad=config.pad_token_id, start=start
    )
    return special_tokens(own, folder, vocab_size=sides.vocab_size)


def _states(sides: Sides, dtype: StateType) -> Iterable[State]:
    if sides.decoder is None:
        return
    yield from cache_states(sides.decoder, dtype)
    if sides.encoder is not None:
        yield from source_states(sides.decoder, dtype)


def _max_tokens(config: ModelConfig, folder: Path) -> int | None:
    """The context that a model was made for, if its positions reach further."""
    longest = default_context(config)
    match config:
        case EncoderConfig(input=TokenInput(), context_length=most):
            most = longest or most
            return min(max_tokens(folder) or most, most)
        case _:
            return longest


def _padding(config: ModelConfig, tokenizer: Tokenizer | None, folder: Path | None) -> int | None:
    """Id of the padding that an encoder reads like other tokens; None if it does not."""
    match config:
        case EncoderConfig(input=TokenInput(padded=True), pad_token_id=own):
            return padding_id(tokenizer, folder, own)
        case _:
            return None


def _typed(config: C, folder: Path | None) -> C:
    """The same config, if the tokenizer gives types; else one that does not read them."""
    match config:
        case EncoderConfig(input=TokenInput(types=types) as tokens) if types > 1:
            if folder is not None and not has_types(folder, config.model_type):
                return replace(config, input=replace(tokens, reads_types=False))
    return config
