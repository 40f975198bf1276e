"""What is exported: a checkpoint folder, or a live module built from `ortolan.modeling`.

The class of the config says the kind: `TransformerConfig` is a decoder, `EncoderConfig` an
encoder, `EncoderDecoderConfig` both. Names of weights and tables are those of the module: of an
encoder-decoder they begin with `encoder.`, `decoder.` or `shared.`.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.source.preprocessing import image_source
from ortolan.export.source.special_tokens import GENERATION_CONFIG, special_tokens
from ortolan.modeling.checkpoint.folder import (
    checkpoint_sha256,
    limit_context,
    open_weights,
    read_config,
)
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelHead,
    ModelConfig,
    PatchInput,
    StackConfig,
    TokenInput,
    TransformerConfig,
)
from ortolan.modeling.layers.positions import tables
from ortolan.modeling.models.stack import Model
from ortolan.modeling.weights import ModuleWeights, Weights
from ortolan.runtime.bundle.manifest import ImageSource, Output, TextSource, Tokens
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"

COMPANIONS = (TOKENIZER, "chat_template.jinja", GENERATION_CONFIG)
"""Files of a checkpoint that a bundle takes along; of an encoder, the tokenizer alone."""

Kind = Literal["decoder", "encoder", "encoder-decoder"]

Config = TransformerConfig | EncoderConfig | EncoderDecoderConfig
"""Of a model that can be exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model to export.

    Attributes:
        config: the model, with the context that was asked for; its class is the kind.
        weights: its weights by our names.
        tables: its fixed tables, by the names of the initializers, such as `rotary_cos` or
            `encoder.position_table`.
        sha256: of everything that decides what it computes.
        folder: the checkpoint's; `None` for a live module.
        companions: files to take along, by name.
        tokens: ids with a meaning; none for an encoder of images.
        tokenizer: reads texts; `None` where the model takes only ids, or images.
        takes: what the encoder takes; `None` for a decoder by itself.
        gives: what an encoder by itself gives; `None` for the other kinds.
        vocab_size: ids of the decoder, or of the encoder's texts; 1 for images.
        source_vocab_size: ids of the encoder's texts; as `vocab_size` where there are none.
        context_length: tokens of the decoder, or of the encoder's texts; for images, the
            vectors that one becomes.
    """

    config: Config
    weights: Weights
    tables: dict[str, Tensor]
    sha256: str
    folder: Path | None
    companions: dict[str, Path]
    tokens: Tokens
    tokenizer: Tokenizer | None
    takes: TextSource | ImageSource | None
    gives: Output | None
    vocab_size: int
    source_vocab_size: int
    context_length: int

    @property
    def kind(self) -> Kind:
        """What a manifest calls it."""
        match self.config:
            case EncoderConfig():
                return "encoder"
            case EncoderDecoderConfig():
                return "encoder-decoder"
            case _:
                return "decoder"


def open_source(
    source: str | Path | Model, *, tokenizer: str | Path | None, max_context: int | None
) -> Source:
    """Open a checkpoint folder of any kind, or a module.

    Args:
        source: the folder, or a `Decoder`, `Encoder` or `EncoderDecoder`.
        tokenizer: a tokenizer.json for it; a checkpoint folder's own by default.
        max_context: tokens that shall fit, of a source and of a target alike; the model's own
            by default.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: the model cannot be exported like this.
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
        OptionError: there is no tokenizer where one was said to be, or none is needed;
            generation_config.json or preprocessor_config.json cannot be read or honoured; or a
            special token is outside the vocabulary.
        TokenizerError: tokenizer.json is damaged, or belongs to another model.
    """
    if isinstance(source, Model):
        config, folder = source.config, None
        weights: Weights = ModuleWeights(source)
        digest = _module_sha256(source)
    else:
        config, folder = read_config(source, ModelConfig), Path(source)
        weights = open_weights(folder, config)
        digest = checkpoint_sha256(folder)
    limited = limit_context(_known(config), max_context)
    companions = _companions(limited, folder, tokenizer)
    vocab_size, context_length = _sizes(limited)
    has_vocabulary = _patches(limited) is None or isinstance(limited, EncoderDecoderConfig)
    return Source(
        config=limited,
        weights=weights,
        tables=_tables(limited),
        sha256=digest,
        folder=folder,
        companions=companions,
        tokens=special_tokens(config, vocab_size, folder) if has_vocabulary else Tokens(),
        tokenizer=_tokenizer(limited, companions.get(TOKENIZER)),
        takes=_takes(limited, folder),
        gives=_gives(limited),
        vocab_size=vocab_size,
        source_vocab_size=_source_vocab_size(limited),
        context_length=context_length,
    )


def _known(config: ModelConfig) -> Config:
    if not isinstance(config, Config):
        raise TypeError(f"expected the config of a model, got {type(config).__name__}")
    return config


def _encoder(config: Config) -> EncoderConfig | None:
    match config:
        case EncoderConfig():
            return config
        case EncoderDecoderConfig(encoder=encoder):
            return encoder
        case _:
            return None


def _patches(config: Config) -> PatchInput | None:
    """What a model of images takes."""
    encoder = _encoder(config)
    return encoder.input if encoder and isinstance(encoder.input, PatchInput) else None


def _sizes(config: Config) -> tuple[int, int]:
    """Ids of the vocabulary, and tokens of the context."""
    match config:
        case EncoderConfig(input=TokenInput(vocab_size=size), context_length=length):
            return size, length
        case EncoderConfig(context_length=length):
            return 1, length
        case TransformerConfig() as decoder:
            return decoder.vocab_size, decoder.context_length
        case EncoderDecoderConfig(decoder=decoder):
            return decoder.vocab_size, decoder.context_length


def _source_vocab_size(config: Config) -> int:
    """Ids of what the encoder reads, if it reads some."""
    encoder = _encoder(config)
    if encoder is None or isinstance(encoder.input, PatchInput):
        return _sizes(config)[0]
    return encoder.input.vocab_size


def _tables(config: Config) -> dict[str, Tensor]:
    if isinstance(config, StackConfig):
        return tables(config)
    sides = {"encoder": config.encoder, "decoder": config.decoder}
    return {
        f"{side}.{name}": table
        for side, stack in sides.items()
        for name, table in tables(stack).items()
    }


def _takes(config: Config, folder: Path | None) -> TextSource | ImageSource | None:
    encoder, patches = _encoder(config), _patches(config)
    if patches is not None:
        return image_source(patches, folder)
    if encoder is None:
        return None
    own, target = _source_vocab_size(config), _sizes(config)[0]
    return TextSource(max_tokens=encoder.context_length, vocab_size=None if own == target else own)


def _gives(config: Config) -> Output | None:
    match config:
        case EncoderConfig(head=ClassifierHead(labels=labels)):
            return Output(kind="labels", size=len(labels), labels=labels)
        case EncoderConfig(head=LanguageModelHead()):
            return Output(kind="logits", size=_sizes(config)[0])
        case EncoderConfig(head=EmbeddingHead(), hidden_size=width):
            return Output(kind="embedding", size=width)
        case EncoderConfig(hidden_size=width):
            return Output(kind="states", size=width)
        case _:
            return None


def _companions(
    config: Config, folder: Path | None, tokenizer: str | Path | None
) -> dict[str, Path]:
    """Files to take along; an encoder of images has no use for any."""
    names: tuple[str, ...] = COMPANIONS
    if isinstance(config, EncoderConfig):
        names = () if _patches(config) else (TOKENIZER,)
    companions = {name: folder / name for name in names if folder and (folder / name).is_file()}
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


def _tokenizer(config: Config, path: Path | None) -> Tokenizer | None:
    """The runtime's reader: a tokenizer that the bundle could not load fails here.

    One tokenizer serves both sides of an encoder-decoder, so its ids fit the smaller vocabulary.
    """
    if path is None:
        return None
    size = min(_sizes(config)[0], _source_vocab_size(config))
    return Tokenizer.from_bytes(path.read_bytes(), model_vocab_size=size)


def _module_sha256(module: Model) -> str:
    digest = sha256(repr(module.config).encode())
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        values = parameter.detach().cpu().contiguous()
        digest.update(values.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()
