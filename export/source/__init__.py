"""Sources of an export: a family's checkpoint, a model of transformers, or a user's own module."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from torch import nn

from ortolan.export.coverage import read_coverage
from ortolan.export.errors import OptionError, not_among
from ortolan.export.exportable import Exportable
from ortolan.export.options import DEFAULTS, ExportOptions, Via
from ortolan.export.source.architecture import (
    architecture_of,
    check_architecture,
    check_known_task,
)
from ortolan.export.source.family import open_family, open_model
from ortolan.export.source.module import open_module
from ortolan.export.source.parts import keys_of_images, open_with_head, with_texts
from ortolan.export.source.recurrent import open_recurrent, open_recurrent_model
from ortolan.export.source.transformers import open_transformers
from ortolan.export.source.transformers.keys import unread_keys
from ortolan.export.source.transformers.live import (
    changes_named,
    check_own,
    is_transformers_model,
    save_live,
    uncompiled,
)
from ortolan.export.source.transformers.original import with_original
from ortolan.export.source.transformers.skeleton import (
    INSTALL,
    is_causal_class,
    is_installed,
    knows,
)
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config_and_keys, unknown_keys
from ortolan.modeling.config import ModelConfig, RecurrentConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES, unknown_family
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel

__all__ = ["AnySource", "open_exportable", "unknown_keys_of", "way_of"]

DECODER_APART = frozenset({"whisper"})
"""Families of encoder-decoders whose decoders alone are read with transformers."""

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
"""Suffixes of transformers' classes of causal language models."""

AnySource = str | Path | Checkpoint | nn.Module
"""A checkpoint (see `open_checkpoint`), or a live model: from `ortolan.modeling`, from
transformers, or a user's own module."""


def open_exportable(
    source: AnySource, options: ExportOptions = DEFAULTS, *, max_context: int | None = None
) -> Exportable:
    """Open a source of any kind.

    Args:
        source: see `AnySource`.
        options: how to read it: `via`, `adapter`, `text_only`, `mtp`, `tokenizer` and
            `accept_unknown`.
        max_context: longest context in tokens; by default the model's own, or the longest that
            shares one set of rotary frequencies.

    Raises:
        CheckpointError: the files cannot be read.
        ConfigError: nothing here computes this model.
        OptionError: an option does not fit the source.
        WeightError: weights are missing, unexpected or of the wrong shape.
    """
    if not isinstance(source, nn.Module):
        return _open_checkpoint(source, options, max_context)
    source = uncompiled(source)
    if is_transformers_model(source):
        saved = save_live(source)
        with changes_named(source):
            opened = _open_checkpoint(saved.checkpoint, options, max_context)
            return with_original(opened, source, saved)
    _refuse_options(options)
    if isinstance(source, RecurrentModel):
        return open_recurrent_model(source, tokenizer=options.tokenizer, max_context=max_context)
    if isinstance(source, TransformerModel):
        return open_model(source, tokenizer=options.tokenizer, max_context=max_context)
    check_own(source)
    return open_module(source, tokenizer=options.tokenizer, max_context=max_context)


def _open_checkpoint(
    source: str | Path | Checkpoint, options: ExportOptions, max_context: int | None
) -> Exportable:
    checkpoint = open_checkpoint(source, adapter=options.adapter)
    checkpoint = checkpoint.of_text() if options.text_only else checkpoint
    check_known_task(checkpoint.values)
    if way_of(checkpoint, options.via) == "family":
        return _open_family(checkpoint, options, max_context)
    if options.mtp:
        raise OptionError(
            "mtp needs a family of Ortolan; transformers traces no head. Leave out --via, or mtp."
        )
    checkpoint = checkpoint.of_text()
    if not is_causal_class(checkpoint.values):
        check_architecture(checkpoint.values, None)
    return open_transformers(
        checkpoint,
        tokenizer=options.tokenizer,
        max_context=max_context,
        accept_unknown=options.accept_unknown,
    )


def _open_family(
    checkpoint: Checkpoint, options: ExportOptions, max_context: int | None
) -> Exportable:
    tokenizer, accepted = options.tokenizer, options.accept_unknown
    with _advised(checkpoint, options.via):
        config, keys = read_config_and_keys(
            checkpoint, ModelConfig, accept_unknown=keys_of_images(checkpoint, accepted)
        )
    check_architecture(checkpoint.values, config)
    if options.mtp:
        return open_with_head(
            config,
            keys,
            checkpoint,
            tokenizer=tokenizer,
            max_context=max_context,
            accept_unknown=accepted,
        )
    if isinstance(config, RecurrentConfig):
        return open_recurrent(
            config, keys, checkpoint, tokenizer=tokenizer, max_context=max_context
        )
    has_texts = checkpoint.texts is not None
    model = open_family(
        config,
        keys,
        checkpoint,
        tokenizer=None if has_texts else tokenizer,
        max_context=max_context,
    )
    if not has_texts:
        return model
    return with_texts(model, checkpoint, tokenizer=tokenizer, accept_unknown=accepted)


def way_of(checkpoint: Checkpoint, via: Via | None) -> Via:
    """How to open a checkpoint: as asked, or else as a family if there is one."""
    if via is None:
        return "family" if _has_family(checkpoint) else "transformers"
    if via not in get_args(Via):
        raise not_among("via", via, get_args(Via))
    return via


@contextmanager
def _advised(checkpoint: Checkpoint, via: Via | None) -> Iterator[None]:
    """If a family cannot read a config, mention that transformers may."""
    try:
        yield
    except ConfigError as error:
        name, model_type = architecture_of(checkpoint.values), checkpoint.values.get("model_type")
        is_known = name.endswith(LANGUAGE_MODELS) and is_installed() and knows(str(model_type))
        if via is None and is_known:
            raise ConfigError(f"{error} Or read it with --via transformers.") from error
        raise


def unknown_keys_of(checkpoint: Checkpoint, via: Via | None) -> tuple[str, ...]:
    """The keys of a checkpoint's config that an export refuses unless they are accepted."""
    check_known_task(checkpoint.values)
    if way_of(checkpoint, via) == "transformers":
        return unread_keys(checkpoint.of_text().values)
    with _advised(checkpoint, via):
        texts = () if checkpoint.texts is None else unknown_keys(checkpoint.texts)
        return tuple(sorted({*unknown_keys(checkpoint), *texts}))


def _has_family(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has a family; if not, transformers has its type."""
    model_type = checkpoint.values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        return True
    if model_type in FAMILIES:
        is_decoder_alone = model_type in DECODER_APART and is_installed()
        return not (is_decoder_alone and is_causal_class(checkpoint.values))
    if not is_installed():
        if any(row.supported for row in read_coverage().of(model_type)):
            raise ConfigError(
                f"{model_type}: this type is exported through transformers, which is not "
                f"installed: {INSTALL}."
            )
        raise ConfigError(
            f"{unknown_family(model_type)}. If it is a causal language model of transformers, "
            f"install that: {INSTALL}."
        )
    if not knows(model_type):
        others = f" or a causal language model of transformers {version('transformers')}"
        if "auto_map" in checkpoint.values:
            raise ConfigError(
                f"{unknown_family(model_type, or_else=others)}. The checkpoint needs the code in "
                "its own repository (auto_map), which Ortolan neither fetches nor runs. Where you "
                "trust that code, load the model yourself and export the module from Python."
            )
        raise ConfigError(
            f"{unknown_family(model_type, or_else=others)}. `ortolan families` lists what was "
            "tried. Try a newer transformers, or export the module itself from Python."
        )
    return False


def _refuse_options(options: ExportOptions) -> None:
    """Refuse options that need a checkpoint."""
    if options.mtp:
        raise OptionError("mtp needs a checkpoint, not a live module. Leave it out.")
    if options.accept_unknown:
        raise OptionError(
            "accept_unknown: a live module has no config.json with "
            f"{', '.join(options.accept_unknown)}. Leave it out."
        )
    for name, advice in (("via", "Leave it out."), ("adapter", "Merge it with PEFT first.")):
        value = getattr(options, name)
        if value is not None:
            raise OptionError(
                f"{name}: only for a checkpoint, not a live module (got {value}). {advice}"
            )
