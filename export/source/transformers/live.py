"""Saves a live model of transformers as a checkpoint, and tells live models apart.

transformers writes the checkpoint, so names, tied weights and the layout of experts are those of a
published one, and everything that reads one works for a live model too.
"""

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from torch import nn

from ortolan.export.errors import OptionError
from ortolan.export.source import ctc_symbols, token_files
from ortolan.export.source.companions import COMPANIONS
from ortolan.export.source.transformers.original import changes_of, listed, published_class
from ortolan.export.source.transformers.private import has_adapters
from ortolan.files import described
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.errors import CheckpointError, ConfigError, WeightError

ARCHITECTURES = "architectures"
"""Config key for the class of a model."""

FILES = (
    *COMPANIONS,
    *token_files.FILES,
    *ctc_symbols.FILES,
    "preprocessor_config.json",
    "processor_config.json",
    "calibration.txt",
    "calibration.tsv",
    "calibration.npy",
)
"""Files to copy from the folder that a model was loaded from."""

_SPACE = "Free space there, or set TMPDIR."


def uncompiled(module: nn.Module) -> nn.Module:
    """Unwrap a module from `torch.compile`: tracing a wrapped one crashes."""
    inner = getattr(module, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else module


def is_transformers_model(module: nn.Module) -> bool:
    """Whether a module is a model of transformers, without importing that."""
    return _is_of(module, "transformers") and hasattr(module, "save_pretrained")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A live model in a temporary folder, which is removed with this object.

    Attributes:
        checkpoint: reads the folder.
    """

    checkpoint: Checkpoint


def save_live(module: Any) -> Saved:
    """Save a live model of transformers in a temporary folder of the size of its weights."""
    _check_merged(module)
    name = type(module).__name__
    tensors = chain(module.named_parameters(), module.named_buffers())
    empty = [weight for weight, tensor in tensors if tensor.is_meta]
    if empty:
        raise CheckpointError(
            f"{name}: {len(empty)} of its weights have no values (device meta), such as "
            f"{empty[0]}. Load them first."
        )
    folder = Path(mkdtemp(prefix="ortolan-"))
    try:
        saved = Saved(checkpoint=_written(module, folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finalize(saved, shutil.rmtree, folder, ignore_errors=True)
    return saved


def _written(module: Any, folder: Path) -> Checkpoint:
    """Write a live model to a folder, and open that."""
    name = type(module).__name__
    try:
        with _no_bar(), _unchanged_config(module):
            module.save_pretrained(folder)
        _copy_files(Path(str(getattr(module, "name_or_path", ""))), folder)
    except OSError as error:
        raise CheckpointError(
            f"{name}: cannot be saved to {folder}: {described(error, full=_SPACE)}"
        ) from error
    except Exception as error:  # transformers refuses some models in many ways
        raise CheckpointError(
            f"{name}: save_pretrained raised {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}. Correct the model, or export a checkpoint of "
            "it."
        ) from error
    checkpoint = open_checkpoint(folder)
    if checkpoint.values.get(ARCHITECTURES) != [name]:
        return checkpoint
    # A class of the user's own is read as the one that it is derived from.
    values = checkpoint.values | {ARCHITECTURES: [published_class(module).__name__]}
    return replace(checkpoint, values=values)


@contextmanager
def changes_named(module: nn.Module) -> Iterator[None]:
    """Where a live model cannot be read from its files, say what was changed in it."""
    try:
        yield
    except (ConfigError, WeightError) as error:
        changes = changes_of(module)
        if not changes:
            raise
        raise type(error)(
            f"{error} {type(module).__name__} was changed: {listed(changes)}."
        ) from error


@contextmanager
def _unchanged_config(module: Any) -> Iterator[None]:
    """Undo what saving a model writes into its config."""
    values = dict(vars(module.config))
    try:
        yield
    finally:
        vars(module.config).clear()
        vars(module.config).update(values)


def check_own(module: nn.Module) -> None:
    """Refuse a module that is not a decoder over a `State`, before anything else is asked of it."""
    _check_merged(module)
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"{type(module).__name__}: forward must take token ids and a State (got "
            f"forward{signature}). Export encoders, image models and encoder-decoders from a "
            "checkpoint, or as a model of transformers."
        ) from None


@contextmanager
def _no_bar() -> Iterator[None]:
    """Turn off transformers' progress bar, which would interrupt that of the export."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _is_of(module: nn.Module, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(module).__mro__)


def _check_merged(module: nn.Module) -> None:
    """Raise OptionError for a PEFT model, or one with modules that PEFT wraps."""
    if has_adapters(module) or any(_is_of(part, "peft") for part in module.modules()):
        raise OptionError(
            f"{type(module).__name__} has unmerged PEFT adapters. Export merge_and_unload() of the "
            "PeftModel, or the base checkpoint with the option adapter."
        )


def _copy_files(source: Path, folder: Path) -> None:
    """Copy the files of a local checkpoint that were not written already."""
    if source == Path() or not source.is_dir():
        return
    for name in FILES:
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)
