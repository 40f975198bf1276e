"""A live model of transformers, as the checkpoint that it would be saved as.

transformers writes it: names, tied weights, and the layout of experts are those of a published
checkpoint then, and everything that reads one holds for a live model too.
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
from ortolan.export.source.companions import COMPANIONS
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.errors import CheckpointError, ConfigError

BESIDE = (
    *COMPANIONS,
    "preprocessor_config.json",
    "calibration.txt",
    "calibration.tsv",
    "calibration.npy",
)
"""Files of the folder that a model was loaded from which belong to it as well."""


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wraps; any other as it is. Tracing a wrapped one crashes."""
    inner = getattr(module, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else module


def is_transformers_model(module: nn.Module) -> bool:
    """Whether a module is a model of transformers; it need not be imported."""
    return _is_of(module, "transformers") and hasattr(module, "save_pretrained")


def open_live(module: Any) -> Checkpoint:
    """A live model of transformers as a checkpoint in a temporary folder.

    The folder has the size of the weights, and lasts as long as the checkpoint.

    Args:
        module: a `PreTrainedModel`, with its weights in memory.

    Raises:
        OptionError: it carries adapters that are not merged.
        CheckpointError: the temporary folder cannot be written.
    """
    if getattr(module, "_hf_peft_config_loaded", False):
        raise _unmerged(module)
    folder = Path(mkdtemp(prefix="ortolan-"))
    try:
        with _no_bar():
            module.save_pretrained(folder)
        _copy_beside(Path(str(getattr(module, "name_or_path", ""))), folder)
        checkpoint = open_checkpoint(folder)
        finalize(checkpoint.tensors, shutil.rmtree, folder, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"{type(module).__name__}: could not write it to {folder}: {error}. Free space there, "
            "or set TMPDIR."
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return checkpoint


def check_own(module: nn.Module) -> None:
    """Refuse a module that is no decoder over a `State`, before its details are asked for.

    Raises:
        OptionError: it carries adapters of PEFT.
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
            f"{type(module).__name__}: a module of your own is a decoder whose forward takes token "
            f"ids and a State (got forward{signature}). Export encoders, models of images and "
            "encoder-decoders from a checkpoint, or as a model of transformers."
        ) from None


@contextmanager
def _no_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar of its own between those of an export."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _is_of(module: nn.Module, package: str) -> bool:
    return any(each.__module__.partition(".")[0] == package for each in type(module).__mro__)


def _unmerged(module: nn.Module) -> OptionError:
    return OptionError(
        f"{type(module).__name__}: a model with adapters of PEFT that are not merged. Export "
        "model.merge_and_unload(), or the base checkpoint with the option adapter."
    )


def _copy_beside(source: Path, folder: Path) -> None:
    """Copy what lies beside the weights in a local folder, except what was written already."""
    if source == Path() or not source.is_dir():
        return
    for name in BESIDE:
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)
