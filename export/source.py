"""What is exported: a checkpoint folder, or a live module built from `ortolan.modeling`."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.modeling import Decoder, TransformerConfig, read_config
from ortolan.modeling.checkpoint import (
    checkpoint_sha256,
    limit_context,
    open_weights,
)
from ortolan.modeling.positions import tables
from ortolan.modeling.weights import ModuleWeights, Weights
from ortolan.runtime.manifest import Tokens
from ortolan.runtime.tokenizer import Tokenizer

COMPANIONS = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
"""Files of a checkpoint that a bundle takes along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model to export.

    Attributes:
        config: the model, with the context that was asked for.
        weights: its weights by our names.
        tables: its fixed tables, by the names of the initializers.
        sha256: of everything that decides what it computes.
        folder: the checkpoint's; `None` for a live module.
        companions: files to take along, by name.
        tokens: ids with a meaning.
        tokenizer: reads texts; `None` where the model takes only ids.
    """

    config: TransformerConfig
    weights: Weights
    tables: dict[str, Tensor]
    sha256: str
    folder: Path | None
    companions: dict[str, Path]
    tokens: Tokens
    tokenizer: Tokenizer | None


def open_source(
    source: str | Path | Decoder, *, tokenizer: str | Path | None, max_context: int | None
) -> Source:
    """Open a checkpoint folder, or a module.

    Args:
        source: the folder or the module.
        tokenizer: a tokenizer.json for it; a checkpoint folder's own by default.
        max_context: tokens that shall fit; the model's own by default.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: the model cannot be exported like this.
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
        OptionError: there is no tokenizer where one was said to be, generation_config.json
            cannot be read, or a special token is outside the vocabulary.
        TokenizerError: tokenizer.json is damaged, or belongs to another model.
    """
    if isinstance(source, Decoder):
        config, folder = source.config, None
        weights: Weights = ModuleWeights(source)
        digest = _module_sha256(source)
    else:
        config, folder = read_config(source), Path(source)
        weights = open_weights(folder, config)
        digest = checkpoint_sha256(folder)
    companions = {
        name: folder / name for name in COMPANIONS if folder and (folder / name).is_file()
    }
    if tokenizer is not None:
        companions["tokenizer.json"] = Path(tokenizer)
        if not companions["tokenizer.json"].is_file():
            raise OptionError(f"{tokenizer}: expected a tokenizer.json, got no such file.")
    limited = limit_context(config, max_context)
    return Source(
        config=limited,
        weights=weights,
        tables=tables(limited),
        sha256=digest,
        folder=folder,
        companions=companions,
        tokens=_tokens(config, companions.get("generation_config.json")),
        tokenizer=_tokenizer(config, companions.get("tokenizer.json")),
    )


def _tokenizer(config: TransformerConfig, path: Path | None) -> Tokenizer | None:
    """The runtime's reader: a tokenizer that the bundle could not load fails here."""
    if path is None:
        return None
    return Tokenizer.from_bytes(path.read_bytes(), model_vocab_size=config.vocab_size)


def _module_sha256(module: Decoder) -> str:
    digest = sha256(repr(module.config).encode())
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        values = parameter.detach().cpu().contiguous()
        digest.update(values.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


class _GenerationConfig(msgspec.Struct):
    """What is read of generation_config.json."""

    eos_token_id: int | tuple[int, ...] | None = None


def _tokens(config: TransformerConfig, generation_config: Path | None) -> Tokens:
    """Special ids: generation_config.json knows the ends of a turn that config.json omits."""
    eos = config.eos_token_ids
    if generation_config is not None:
        try:
            given = msgspec.json.decode(generation_config.read_bytes(), type=_GenerationConfig)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OptionError(
                f"{generation_config}: expected a JSON object with eos_token_id, got {error}. "
                "Correct or remove it."
            ) from error
        match given.eos_token_id:
            case int(one):
                eos = (one,)
            case tuple(several):
                eos = several
    special = (config.bos_token_id, *eos, config.pad_token_id)
    outside = [i for i in special if i is not None and not 0 <= i < config.vocab_size]
    if outside:
        raise OptionError(
            f"special tokens: expected ids from 0 to {config.vocab_size - 1}, got {outside}. "
            "Correct config.json or generation_config.json."
        )
    return Tokens(bos=config.bos_token_id, eos=eos, pad=config.pad_token_id)
