"""What is exported: a checkpoint of a family, any model of transformers, or a user's own module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from torch import nn

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.options import Via
from ortolan.export.source.architecture import (
    architecture_of,
    check_architecture,
    check_known_task,
)
from ortolan.export.source.family import open_family, open_model
from ortolan.export.source.module import open_module
from ortolan.export.source.recurrent import open_recurrent, open_recurrent_model
from ortolan.export.source.transformers import open_transformers
from ortolan.export.source.transformers.keys import unread_keys
from ortolan.export.source.transformers.live import (
    check_own,
    is_transformers_model,
    open_live,
    uncompiled,
)
from ortolan.export.source.transformers.skeleton import (
    INSTALL,
    is_causal_class,
    is_installed,
    knows,
)
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config, unknown_keys
from ortolan.modeling.config import ModelConfig, RecurrentConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES, unknown_family
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel

__all__ = ["Source", "open_exportable", "unknown_keys_of", "way_of"]

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
"""How transformers names classes of causal language models."""

Source = str | Path | Checkpoint | nn.Module
"""A checkpoint (see `open_checkpoint`), or a live model: of `ortolan.modeling`, of transformers, or
a user's own module."""


def open_exportable(
    source: Source,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
    via: Via | None = None,
    adapter: str | Path | None = None,
) -> Exportable:
    """Open a source of any kind; see `open_family` for the arguments and what is raised.

    Args:
        source: what to open.
        tokenizer: see `open_family`.
        max_context: see `open_family`.
        accept_unknown: see `open_family`.
        via: how to open a checkpoint; by default as a family, or else by transformers.
        adapter: a folder of PEFT to merge into a checkpoint.
    """
    if isinstance(source, nn.Module):
        source = uncompiled(source)
    if isinstance(source, nn.Module) and is_transformers_model(source):
        source = open_live(source)
    if isinstance(source, nn.Module):
        _refuse_options(accept_unknown, via, adapter)
        open_own: Callable[..., Exportable] = open_module
        if isinstance(source, RecurrentModel):
            open_own = open_recurrent_model
        elif isinstance(source, TransformerModel):
            open_own = open_model
        else:
            check_own(source)
        return open_own(source, tokenizer=tokenizer, max_context=max_context)
    checkpoint = open_checkpoint(source, adapter=adapter)
    check_known_task(checkpoint.values)
    open_published: Callable[..., Exportable] = open_transformers
    if way_of(checkpoint, via) == "family":
        with _advised(checkpoint, via):
            config = read_config(checkpoint, ModelConfig, accept_unknown=accept_unknown)
        check_architecture(checkpoint.values, config)
        if isinstance(config, RecurrentConfig):
            open_published = partial(open_recurrent, config)
        else:
            open_published = partial(open_family, config)
    elif not is_causal_class(checkpoint.values):
        check_architecture(checkpoint.values, None)
    return open_published(
        checkpoint, tokenizer=tokenizer, max_context=max_context, accept_unknown=accept_unknown
    )


def way_of(checkpoint: Checkpoint, via: Via | None) -> Via:
    """The way that a checkpoint takes: the given one, or a family where there is one.

    Raises:
        ConfigError: nobody knows its type.
    """
    if via is not None:
        return via
    return "family" if _has_family(checkpoint) else "transformers"


@contextmanager
def _advised(checkpoint: Checkpoint, via: Via | None) -> Iterator[None]:
    """Where a family cannot read a config, say if transformers may be asked instead."""
    try:
        yield
    except ConfigError as error:
        name, model_type = architecture_of(checkpoint.values), checkpoint.values.get("model_type")
        is_known = name.endswith(LANGUAGE_MODELS) and is_installed() and knows(str(model_type))
        if via is None and is_known:
            raise ConfigError(
                f"{error} Or have transformers read it: --via transformers."
            ) from error
        raise


def unknown_keys_of(checkpoint: Checkpoint, via: Via | None) -> tuple[str, ...]:
    """The keys of a checkpoint's config that an export refuses unless they are accepted.

    Raises:
        ConfigError: the config cannot be read by the given way, or by that which it takes.
    """
    check_known_task(checkpoint.values)
    if way_of(checkpoint, via) == "transformers":
        return unread_keys(checkpoint.values)
    with _advised(checkpoint, via):
        return unknown_keys(checkpoint)


def _has_family(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is of a family; if not, transformers knows its type.

    Raises:
        ConfigError: neither.
    """
    given = checkpoint.values.get("model_type")
    model_type = given if isinstance(given, str) else ""
    if model_type in FAMILIES or not model_type:
        return True
    if not is_installed():
        raise ConfigError(
            f"{unknown_family(model_type)}. If it is a causal language model of transformers, "
            f"install that: {INSTALL}."
        )
    if not knows(model_type):
        others = f" or a causal language model of transformers {version('transformers')}"
        raise ConfigError(
            f"{unknown_family(model_type, or_else=others)}. `ortolan families` lists what was "
            "tried; a newer transformers may have it; or export the module itself from Python."
        )
    return False


def _refuse_options(
    accept_unknown: tuple[str, ...], via: Via | None, adapter: str | Path | None
) -> None:
    if accept_unknown:
        raise OptionError(
            f"accept_unknown: expected a checkpoint with {', '.join(accept_unknown)} in its "
            "config.json, got a live module. Leave it out."
        )
    if via is not None:
        raise OptionError(f"via: expected none for a live module, got {via}. Leave it out.")
    if adapter is not None:
        raise OptionError(
            f"adapter: expected none for a live module, got {adapter}. Merge it with PEFT first."
        )
