"""Work of an interrupted export, which the same command continues.

It is kept next to the target, in `.bundle.unfinished/KEY`. The key is a hash of everything that
decides the codes, so other work is never mixed in; it is removed when other work begins, when an
export to the target succeeds, and when one is rejected.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from ortolan import files
from ortolan.errors import OrtolanError
from ortolan.export.errors import OutputError
from ortolan.export.exportable import Exportable, content_of
from ortolan.export.inputs.calibration import Data
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize.candidates import INDEX, read_tensors, write_tensors
from ortolan.export.settings import Plan

_TEXT = "inputs.pt"
_LIBRARIES = ("ortolan", "torch", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The folder of unfinished work next to a target."""

    folder: Path

    def begin(self, key: str) -> Path:
        """The folder of some work, new or continued; all other work is removed."""
        if self.folder.is_symlink():
            files.remove(self.folder)  # not what it points to
        files.make_folders(self.folder)
        for other in self.folder.iterdir():
            if other.name != key:
                files.remove_folder(other)
        work = self.folder / key
        files.make_folders(work)
        return work


def folder_of(target: Path) -> Path:
    """Folder of the unfinished work of a target."""
    target = target.absolute()
    return target.with_name(f".{target.name}.unfinished")


@contextmanager
def unfinished(target: Path) -> Iterator[Unfinished]:
    """The unfinished work of a target, removed at the end unless that is an interruption."""
    kept = Unfinished(folder_of(target))
    try:
        yield kept
    except OutputError:  # such as a full disk
        raise
    except OrtolanError:
        files.remove_folder(kept.folder)
        raise
    with suppress(OSError):  # the next export tries again
        files.remove_folder(kept.folder)


def key_of(model: Exportable, plan: Plan, data: Data) -> str:
    """A hash of everything that decides the codes of calibrated weights."""
    versions = [version(name) for name in _LIBRARIES]
    machine = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    key = hashlib.sha256(repr((plan, model.context_length, versions, machine)).encode())
    key.update(model.origin.sha256().encode())
    for name, companion in sorted(model.companions.items()):
        key.update(name.encode() + content_of(companion))
    for tensor in (*data.inputs.sources, *data.inputs.ids):
        key.update(tensor.contiguous().numpy().tobytes())
    return key.hexdigest()[:16]


def write_inputs(work: Path, inputs: Inputs) -> None:
    """Keep what the model wrote."""
    value = list(inputs.sources), list(inputs.ids), inputs.origin
    write_tensors(work / _TEXT, value, is_synced=True)


def read_inputs(work: Path) -> Inputs | None:
    """What the model wrote before an interruption, if it did."""
    if not (work / _TEXT).exists():
        return None
    sources, ids, origin = read_tensors(work / _TEXT)
    return Inputs(sources=sources, ids=ids, origin=origin)


def finished(work: Path) -> int:
    """Number of weights whose codes an interrupted export left."""
    return len(list(work.glob(f"*{INDEX}")))
