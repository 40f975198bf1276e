"""Load models from checkpoints, and save them as folders in Hugging Face format."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar, cast, overload

import torch
from safetensors.torch import save as serialized
from torch import Tensor

from ortolan import files
from ortolan.modeling.checkpoint.checkpoint import (
    CONFIG,
    Checkpoint,
    Source,
    open_checkpoint,
    open_tensors,
)
from ortolan.modeling.checkpoint.mapped_weights import map_weights
from ortolan.modeling.checkpoint.position_table import resized_positions
from ortolan.modeling.checkpoint.sentence_head import (
    DENSE_WEIGHTS,
    MODULES,
    cross_encoder_values,
    dense_folders,
    read_sentence_head,
    with_projections,
    write_sentence_head,
)
from ortolan.modeling.checkpoint.weight_norm import weight_normed
from ortolan.modeling.config import (
    AlibiPositions,
    ClassifierHead,
    ConvolutionalPositions,
    DecoderConfig,
    DynamicNTKScaling,
    EmbeddingHead,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelHead,
    LearnedPositions,
    ModelConfig,
    PatchInput,
    RecurrentConfig,
    RelativeBiasPositions,
    RotaryPositions,
    SquareTable,
    StackConfig,
    TokenInput,
    as_encoder,
)
from ortolan.modeling.errors import CheckpointError, ConfigError
from ortolan.modeling.families import family_of, published_config, weights_of
from ortolan.modeling.families.reader import (
    FEATURE_PARTS,
    MAX_SIZE,
    READS_STATES,
    ConfigKeys,
    ConfigReader,
)
from ortolan.modeling.layers.linear import packed_rows
from ortolan.modeling.layers.positions import tables
from ortolan.modeling.lazy_tensor import LazyTensor
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.models.stack import Stack
from ortolan.modeling.models.transformer import (
    DecoderModel,
    EncoderDecoderModel,
    build,
)
from ortolan.modeling.weights import TensorWeights, published_pieces, targets
from ortolan.staging import placed

C = TypeVar("C", bound=ModelConfig)

S = TypeVar("S", bound=StackConfig)

M = TypeVar("M", bound=TransformerModel)

KINDS: dict[type[ModelConfig], str] = {
    DecoderConfig: "a decoder",
    EncoderConfig: "an encoder",
    EncoderDecoderConfig: "an encoder-decoder",
    RecurrentConfig: "a recurrent network",
}
"""Names of the kinds of models in messages."""

CONFIGS: dict[type[TransformerModel], type[ModelConfig]] = {
    TransformerModel: ModelConfig,
    DecoderModel: DecoderConfig,
    EncoderModel: EncoderConfig,
    EncoderDecoderModel: EncoderDecoderConfig,
    RecurrentModel: RecurrentConfig,
}
"""Config class of each model class."""


@overload
def read_config(source: Source, *, accept_unknown: Collection[str] = ...) -> DecoderConfig: ...
@overload
def read_config(source: Source, kind: type[C], *, accept_unknown: Collection[str] = ...) -> C: ...


def read_config(
    source: Source,
    kind: type[ModelConfig] = DecoderConfig,
    *,
    accept_unknown: Collection[str] = (),
) -> ModelConfig:
    """Read the config of a checkpoint.

    Args:
        source: the checkpoint; see `open_checkpoint`.
        kind: class of the config; `ModelConfig` for any.
        accept_unknown: unknown keys of config.json to ignore.

    Raises:
        CheckpointError: there is no folder, or it has no readable config.json.
        ConfigError: Ortolan does not implement the family, does not understand the config, or the
            model is of another kind.
    """
    return read_config_and_keys(open_checkpoint(source), kind, accept_unknown=accept_unknown)[0]


def read_config_and_keys(
    checkpoint: Checkpoint, kind: type[C], *, accept_unknown: Collection[str] = ()
) -> tuple[C, ConfigKeys]:
    """Read the config of a checkpoint, and classify its keys; see `read_config`."""
    config, reader = _read(checkpoint.values)
    keys = reader.finish(accept_unknown)
    match config:
        case EncoderConfig(head=ClassifierHead()):
            further = cross_encoder_values(checkpoint.folder)
            config = _read(checkpoint.values | further)[0] if further else config
        case EncoderConfig(head=None | LanguageModelHead(), hidden_size=width):
            # Some configs keep the class of the model that the embedding was trained from.
            embedding = read_sentence_head(checkpoint.folder, width)
            config = config if embedding is None else replace(config, head=embedding)
        case DecoderConfig(hidden_size=width) if not issubclass(kind, DecoderConfig):
            # A language model whose states embed texts.
            head = read_sentence_head(checkpoint.folder, width)
            config = config if head is None else as_encoder(config, head=head)
    return _of_kind(config, kind), keys


def unknown_keys(source: Source) -> tuple[str, ...]:
    """Unknown keys of a checkpoint's config; see `read_config`."""
    _, reader = _read(open_checkpoint(source).values)
    return reader.unknown()


@overload
def config_from_hf(
    values: dict[str, object], *, accept_unknown: Collection[str] = ...
) -> DecoderConfig: ...
@overload
def config_from_hf(
    values: dict[str, object], kind: type[C], *, accept_unknown: Collection[str] = ...
) -> C: ...


def config_from_hf(
    values: dict[str, object],
    kind: type[ModelConfig] = DecoderConfig,
    *,
    accept_unknown: Collection[str] = (),
) -> ModelConfig:
    """Convert the values of a Hugging Face config; see `read_config`."""
    config, reader = _read(values)
    reader.finish(accept_unknown)
    return _of_kind(config, kind)


def _of_kind(config: ModelConfig, kind: type[C]) -> C:
    """Return the config, or raise ConfigError if it is of another kind."""
    if not isinstance(config, kind):
        raise ConfigError(
            f"{config.model_type} is {KINDS[type(config)]}, not {KINDS[kind]}. Choose another "
            "checkpoint, or pass the kind to load."
        )
    return config


def _read(values: dict[str, object]) -> tuple[ModelConfig, ConfigReader]:
    """Read a config of any kind; the reader records which keys were used."""
    reader = ConfigReader(values)
    family = family_of(reader.get("model_type", str))
    config: ModelConfig = family.config(reader)
    reader.refuse("add_cross_attention")
    if isinstance(config, DecoderConfig) and reader.get(READS_STATES, bool, False):
        config = replace(config, state_norm=config.final_norm)
    if isinstance(config, DecoderConfig):
        config = _with_parts(config, reader.get(FEATURE_PARTS, int, 0))
    return config, reader


def _with_parts(config: DecoderConfig, parts: int) -> DecoderConfig:
    """A decoder whose first blocks each add a further part of the vectors of images."""
    if not 0 <= parts <= len(config.blocks):
        raise ConfigError(
            f"deepstack_visual_indexes: expected at most {len(config.blocks)}, one for each layer "
            f"of the language model, got {parts}. Correct it."
        )
    first = (replace(block, feature_part=i + 1) for i, block in enumerate(config.blocks[:parts]))
    return replace(config, blocks=(*first, *config.blocks[parts:]))


def open_weights(
    source: Source, config: ModelConfig, module: TransformerModel | None = None
) -> TensorWeights:
    """Weights of a checkpoint by our names, read on demand; `module` is the `empty_model`."""
    checkpoint, table = open_checkpoint(source), weights_of(config)
    module = empty_model(config) if module is None else module
    if checkpoint.adapter is not None:
        tied = {*module.tied, *module.tied.values()}
        checkpoint.adapter.check_tied(
            name for name in table if any(target.name in tied for target in targets(table, name))
        )
    return map_weights(
        _tensors(checkpoint, config),
        table,
        {name: tuple(p.shape) for name, p in module.named_parameters()},
        packed_rows(module),
        base_model_prefix=family_of(config.model_type).base_model_prefix,
        tied=module.tied,
    )


def _tensors(checkpoint: Checkpoint, config: ModelConfig) -> Mapping[str, LazyTensor]:
    """Tensors of a model, including those in folders of their own or stored in two parts."""
    match config:
        case EncoderConfig(head=EmbeddingHead(projections=projections)) if projections:
            dense = [open_tensors(folder).tensors for folder in dense_folders(checkpoint.folder)]
            return with_projections(checkpoint.tensors, dense)
        case EncoderConfig(positions=ConvolutionalPositions()):
            return weight_normed(checkpoint.tensors)
        case EncoderConfig(
            input=PatchInput(grid=grid),
            positions=LearnedPositions(published=SquareTable(side=side) as table),
        ) if grid != (side, side):
            return resized_positions(checkpoint.tensors, table, grid)
        case _:
            return checkpoint.tensors


def empty_model(config: ModelConfig) -> TransformerModel:
    """A model of the right shape, without memory for its weights (device "meta")."""
    with torch.device("meta"):
        return build(config)


@overload
def load(source: Source, *, max_context: int | None = None) -> DecoderModel: ...
@overload
def load(source: Source, kind: type[M], *, max_context: int | None = None) -> M: ...


def load(
    source: Source, kind: type[TransformerModel] = DecoderModel, *, max_context: int | None = None
) -> TransformerModel:
    """Load a checkpoint as a float32 module in evaluation mode.

    Args:
        source: the checkpoint; see `open_checkpoint`.
        kind: `DecoderModel`, `EncoderModel`, `EncoderDecoderModel` or `RecurrentModel`;
            `TransformerModel` for any.
        max_context: maximum number of tokens; see `default_context` for the default.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        ConfigError: Ortolan does not implement the model, or it is of another kind.
        WeightError: names weights that are missing, unexpected or of the wrong shape.
    """
    checkpoint = open_checkpoint(source)
    config = read_config(checkpoint, CONFIGS[kind])
    weights = open_weights(checkpoint, config)
    module = empty_model(
        limit_context(config, default_context(config) if max_context is None else max_context)
    )
    # A shorter context needs only the first rows of a learned table.
    state = {
        name: weights.rows(name, 0, parameter.shape[0]).to(torch.float32)
        for name, parameter in module.named_parameters()
    }
    # Not strict, since tied weights have further names; `open_weights` has checked all names.
    module.load_state_dict(state, assign=True, strict=False)
    for stack in module.modules():
        if isinstance(stack, Stack):
            for name, table in tables(stack.config).items():
                stack.register_buffer(name, table, persistent=False)
    return module.eval()


def default_context(config: ModelConfig) -> int | None:
    """Default maximum number of tokens; None for the config's own context length.

    Some models rotate by other angles once the context exceeds a length, also for short inputs. For
    them, the default is the longest context with the original angles.
    """
    match config:
        case StackConfig(context_length=longest, switches_after=int(last)):
            return min(longest, last)
        case _:
            return None


def limit_context(config: C, max_context: int | None) -> C:
    """The same config with room for `max_context` tokens."""
    limited: ModelConfig = config
    match config:
        case _ if max_context is None:
            return config
        case StackConfig():
            limited = _limit_stack(config, max_context)
        case RecurrentConfig():
            # A recurrent network does not depend on positions.
            limited = replace(config, context_length=max_context)
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            limited = replace(
                config,
                # An image or a sound always has the same number of vectors.
                encoder=_limit_stack(encoder, max_context)
                if isinstance(encoder.input, TokenInput)
                else encoder,
                decoder=_limit_stack(decoder, max_context),
            )
    return cast(C, limited)


def _limit_stack(config: S, max_context: int) -> S:
    match config.positions:
        case RotaryPositions(scaling=DynamicNTKScaling()):
            longest = MAX_SIZE
        case RelativeBiasPositions(absolute=None) | AlibiPositions() | ConvolutionalPositions():
            longest = MAX_SIZE
        case _:
            longest = config.context_length
    match config:
        case EncoderConfig(input=TokenInput(padded=True), context_length=length):
            if max_context != length:
                raise ConfigError(
                    f"max_context must be {length}, to which the model pads every text (got "
                    f"{max_context}). Leave it out."
                )
    if not 1 <= max_context <= longest:
        raise ConfigError(
            f"max_context must be from 1 to {longest}, the reach of the model's positions (got "
            f"{max_context})."
        )
    return replace(config, context_length=max_context)


def save(module: TransformerModel, path: str | Path, *, dtype: torch.dtype | None = None) -> None:
    """Write a checkpoint folder that Hugging Face transformers loads to the same logits.

    Args:
        module: the model; its config determines the family and so the format.
        path: folder, created if absent; config.json and model.safetensors are replaced together.
        dtype: dtype of the stored weights; by default their own.

    Raises:
        CheckpointError: the folder cannot be written; its previous content is unchanged.
        WeightError: the family's format cannot store a weight.
        ConfigError: the family's format cannot express the config.
    """
    _described(module.config)  # fail before the folder is created
    with replaced(Path(path)) as folder:
        write(module, folder, dtype=dtype)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a folder for checkpoint files, which replace the old ones together at the end."""
    try:
        with placed(path, index=CONFIG, owned=(MODULES,)) as folder:
            yield folder
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot write the checkpoint: {files.described(error)}"
        ) from error


def write(module: TransformerModel, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write a model to a folder that nothing reads yet; raises what `save` raises."""
    values = _described(module.config)
    table, packed = weights_of(module.config), packed_rows(module)
    tensors: dict[str, Tensor] = {}
    for ours, parameter in module.named_parameters():
        weight = parameter.detach().cpu()
        pieces = published_pieces(table, ours, packed.get(ours, weight.shape[:1]))
        for piece, rows in zip(pieces, torch.split(weight, [p.rows for p in pieces]), strict=True):
            piece.write(rows, tensors, dtype or parameter.dtype)
    values["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    match module.config:
        case EncoderConfig(head=EmbeddingHead() as head, hidden_size=width):
            for number, place in enumerate(write_sentence_head(folder, head, width)):
                names = [name for name in tensors if name.startswith(f"projections.{number}.")]
                dense = {f"linear.{name.rpartition('.')[2]}": tensors.pop(name) for name in names}
                _write_tensors(place / DENSE_WEIGHTS, dense)
    _write_tensors(folder / "model.safetensors", tensors)
    files.write(folder / CONFIG, json.dumps(values, indent=2) + "\n")


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    files.write(path, serialized(tensors, metadata={"format": "pt"}))


def _described(config: ModelConfig) -> dict[str, object]:
    """Published values of a config; ConfigError if they would be read back differently."""
    values = published_config(config)
    match config:
        case EncoderConfig(head=EmbeddingHead()):
            # The sentence head has its own files.
            config = replace(config, head=None)
    read = config_from_hf(values, type(config))
    changed = [f.name for f in fields(config) if getattr(read, f.name) != getattr(config, f.name)]
    if changed:
        raise ConfigError(
            f"{config.model_type}: the family's format cannot express {', '.join(changed)} of this "
            "model. Save it as another family."
        )
    return values
