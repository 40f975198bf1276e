"""Saves a live model of transformers as a checkpoint, and tells live models apart.

transformers writes the checkpoint, so names, tied weights and the layout of experts are those of a
published one, and everything that reads one works for a live model too.
"""

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from torch import nn

from ortolan.export.errors import OptionError
from ortolan.export.source import ctc_symbols
from ortolan.export.source.companions import COMPANIONS
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.errors import CheckpointError, ConfigError

FILES = (
    *COMPANIONS,
    *ctc_symbols.FILES,
    "preprocessor_config.json",
    "processor_config.json",
    "calibration.txt",
    "calibration.tsv",
    "calibration.npy",
)
"""Files to copy from the folder that a model was loaded from."""


def uncompiled(module: nn.Module) -> nn.Module:
    """Unwrap a module from `torch.compile`: tracing a wrapped one crashes."""
    inner = getattr(module, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else module


def is_transformers_model(module: nn.Module) -> bool:
    """Whether a module is a model of transformers, without importing that."""
    return _is_of(module, "transformers") and hasattr(module, "save_pretrained")


def open_live(module: Any) -> Checkpoint:
    """Save a live model of transformers in a temporary folder, and open that.

    The folder has the size of the weights, and is removed with the checkpoint.

    Args:
        module: a `PreTrainedModel`, with its weights in memory.

    Raises:
        OptionError: it has unmerged adapters.
        CheckpointError: the temporary folder cannot be written.
    """
    if getattr(module, "_hf_peft_config_loaded", False):
        raise _unmerged(module)
    folder = Path(mkdtemp(prefix="ortolan-"))
    try:
        with _no_bar():
            module.save_pretrained(folder)
        _copy_files(Path(str(getattr(module, "name_or_path", ""))), folder)
        checkpoint = open_checkpoint(folder)
        finalize(checkpoint.tensors, shutil.rmtree, folder, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"{type(module).__name__}: cannot be saved to {folder}: {error}. Free space there, or "
            "set TMPDIR."
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return checkpoint


def check_own(module: nn.Module) -> None:
    """Refuse a module that is not a decoder over a `State`, before anything else is asked of it.

    Raises:
        OptionError: it has unmerged PEFT adapters.
        ConfigError: its forward does not take ids and a state.
    """
    if _is_of(module, "peft"):
        raise _unmerged(module)
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


def _unmerged(module: nn.Module) -> OptionError:
    return OptionError(
        f"{type(module).__name__} has unmerged PEFT adapters. Export model.merge_and_unload(), or "
        "the base checkpoint with the option adapter."
    )


def _copy_files(source: Path, folder: Path) -> None:
    """Copy the files of a local checkpoint that were not written already."""
    if source == Path() or not source.is_dir():
        return
    for name in FILES:
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)
