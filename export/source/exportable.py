"""What is exported: a checkpoint folder, or a live module built from `ortolan.modeling`.

Names of weights and tables are those of the module: of an encoder-decoder they begin with
`encoder.`, `decoder.` or `shared.`.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.source.preprocessing import image_source
from ortolan.export.source.sides import Sides, sides_of
from ortolan.export.source.special_tokens import GENERATION_CONFIG, special_tokens
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, Source, open_checkpoint
from ortolan.modeling.checkpoint.folder import (
    limit_context,
    open_weights,
    read_config,
    read_config_keys,
)
from ortolan.modeling.checkpoint.sentence_head import Prompts, max_tokens, read_prompts
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    EncoderConfig,
    LanguageModelHead,
    ModelConfig,
)
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.layers.positions import tables
from ortolan.modeling.models.stack import TransformerModel
from ortolan.modeling.weights import ModuleWeights, Weights
from ortolan.runtime.bundle.manifest import ImageSource, Output, TextSource, Tokens
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"

COMPANIONS = (TOKENIZER, "chat_template.jinja", GENERATION_CONFIG)
"""Files of a checkpoint that are copied into a bundle; of an encoder, only the tokenizer."""

NO_KEYS = ConfigKeys(read=(), ignored=(), accepted=())
"""Of a model without a config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A model to export.

    Attributes:
        config: the model, with the context that was chosen.
        sides: its encoder and decoder, with their sizes.
        weights: its weights by our names.
        tables: its fixed tables, by the names of the initializers, such as `rotary_cos` or
            `encoder.position_table`.
        sha256: of everything that decides what it computes.
        folder: the checkpoint's; `None` for a live module.
        companions: files to copy into the bundle, by name.
        tokens: ids with a meaning; none for an encoder of images.
        tokenizer: reads texts; `None` where the model takes only ids, or images.
        takes: what the encoder takes; `None` for a decoder by itself.
        gives: what an encoder by itself gives; `None` for the other kinds.
        keys: what became of the keys of its config.json; none of a live module.
    """

    config: ModelConfig
    sides: Sides
    weights: Weights
    tables: dict[str, Tensor]
    sha256: str
    folder: Path | None
    companions: dict[str, Path]
    tokens: Tokens
    tokenizer: Tokenizer | None
    takes: TextSource | ImageSource | None
    gives: Output | None
    keys: ConfigKeys = NO_KEYS

    @property
    def output(self) -> str:
        """What its certificate compares, by name (`runtime.bundle.kinds.OUTPUTS`)."""
        return "logits" if self.gives is None else self.gives.kind


def open_exportable(
    source: Source | TransformerModel,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a checkpoint of any kind, or a module.

    Args:
        source: the checkpoint, see `open_checkpoint`, or a `DecoderModel`, `EncoderModel` or
            `EncoderDecoderModel`.
        tokenizer: a tokenizer.json for it; a checkpoint folder's own by default.
        max_context: tokens that have to fit, of a source and of a target alike; by default the
            model's own, or as many as its sentence-transformers folder says.
        accept_unknown: keys of config.json to ignore although nothing is known of them.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: the model cannot be exported like this.
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
        OptionError: the given tokenizer does not exist, or is not needed; generation_config.json
            or preprocessor_config.json cannot be read or honoured; or a special token is outside
            the vocabulary.
        TokenizerError: tokenizer.json is damaged, or belongs to another model.
    """
    if isinstance(source, TransformerModel):
        config, folder, checkpoint = source.config, None, None
        weights: Weights = ModuleWeights(source)
        digest, keys = _module_sha256(source), NO_KEYS
        _refuse_keys_of_module(accept_unknown)
    else:
        checkpoint = open_checkpoint(source)
        config = read_config(checkpoint, ModelConfig, accept_unknown=accept_unknown)
        keys, folder = read_config_keys(checkpoint, accept_unknown), checkpoint.folder
        weights = open_weights(checkpoint, config)
        digest = checkpoint.sha256()
    limited = limit_context(
        config, _max_tokens(config, folder) if max_context is None else max_context
    )
    sides = sides_of(limited)
    companions = _companions(sides, checkpoint, tokenizer)
    has_vocabulary = sides.patches is None or sides.decoder is not None
    return Exportable(
        config=limited,
        sides=sides,
        weights=weights,
        tables={
            f"{prefix}{name}": table
            for prefix, stack in sides.stacks.items()
            for name, table in tables(stack).items()
        },
        sha256=digest,
        folder=folder,
        companions=companions,
        tokens=special_tokens(config, sides, folder) if has_vocabulary else Tokens(),
        tokenizer=_tokenizer(sides, companions.get(TOKENIZER)),
        takes=_takes(sides, folder),
        gives=None if sides.decoder or not sides.encoder else _gives(sides.encoder),
        keys=keys,
    )


def _max_tokens(config: ModelConfig, folder: Path | None) -> int | None:
    """Tokens of the longest text that an embedding was made for, where its positions reach on."""
    match config:
        case EncoderConfig(head=EmbeddingHead(), context_length=most) if folder:
            return min(max_tokens(folder) or most, most)
        case _:
            return None


def _refuse_keys_of_module(accept_unknown: tuple[str, ...]) -> None:
    if accept_unknown:
        raise OptionError(
            f"accept_unknown: expected a checkpoint with {', '.join(accept_unknown)} in its "
            "config.json, got a live module. Leave it out."
        )


def _takes(sides: Sides, folder: Path | None) -> TextSource | ImageSource | None:
    if sides.patches is not None:
        return image_source(sides.patches, folder)
    if sides.encoder is None:
        return None
    own = sides.source_vocab_size
    is_embedding = isinstance(sides.encoder.head, EmbeddingHead)
    prompts = read_prompts(folder) if folder and is_embedding else Prompts()
    return TextSource(
        max_tokens=sides.encoder.context_length,
        vocab_size=None if own == sides.vocab_size else own,
        prompts=prompts.texts,
        default_prompt=prompts.default,
    )


def _gives(encoder: EncoderConfig) -> Output:
    match encoder.head:
        case ClassifierHead(labels=labels):
            return Output(kind="labels", size=len(labels), labels=labels)
        case LanguageModelHead():
            return Output(kind="logits", size=Sides(encoder=encoder).vocab_size)
        case EmbeddingHead() as head:
            return Output(kind="embedding", size=head.width(encoder.hidden_size))
        case _:
            return Output(kind="states", size=encoder.hidden_size)


def _companions(
    sides: Sides, checkpoint: Checkpoint | None, tokenizer: str | Path | None
) -> dict[str, Path]:
    """Files to copy into the bundle; none for an encoder of images."""
    names: tuple[str, ...] = COMPANIONS
    if sides.decoder is None:
        names = () if sides.patches else (TOKENIZER,)
    own = [name for name in names if tokenizer is None or name != TOKENIZER]
    found = {name: checkpoint.companion(name) for name in own if checkpoint is not None}
    companions = {name: path for name, path in found.items() if path is not None}
    if tokenizer is None:
        return companions
    if TOKENIZER not in names:
        raise OptionError(
            f"{tokenizer}: expected no tokenizer for an encoder of images, got one. Leave it out."
        )
    companions[TOKENIZER] = Path(tokenizer)
    if not companions[TOKENIZER].is_file():
        raise OptionError(f"{tokenizer}: expected a tokenizer.json, got no such file.")
    return companions


def _tokenizer(sides: Sides, path: Path | None) -> Tokenizer | None:
    """A tokenizer as the runtime reads it, so that one it cannot load fails here.

    One tokenizer serves both sides of an encoder-decoder, so its ids fit the smaller vocabulary.
    """
    if path is None:
        return None
    size = min(sides.vocab_size, sides.source_vocab_size)
    return Tokenizer.from_bytes(path.read_bytes(), model_vocab_size=size)


def _module_sha256(module: TransformerModel) -> str:
    digest = sha256(repr(module.config).encode())
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        values = parameter.detach().cpu().contiguous()
        digest.update(values.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()
