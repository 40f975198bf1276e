"""The published tensors that files hold."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ortolan.modeling.checkpoint.wrappers import unwrapped
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensors:
    """Published tensors by name, read slice by slice.

    Attributes:
        files: the files that hold them.
        is_quantized: some are stored in fewer than 16 bits per value.
        left_out: names of towers whose tensors were left out.
    """

    tensors: Mapping[str, LazyTensor]
    files: tuple[Path, ...]
    is_quantized: bool = False
    left_out: tuple[str, ...] = ()

    def of_part(self, rename: Callable[[str], str | None]) -> "FileTensors":
        """Those of one part of a model, under the names that they have there."""
        names = {rename(name): tensor for name, tensor in self.tensors.items()}
        return replace(self, tensors={name: t for name, t in names.items() if name is not None})


def tensors_of(
    files: Iterable[Path], read: Callable[[Path], Iterable[tuple[str, LazyTensor]]]
) -> FileTensors:
    """All tensors of some files, each of which is read by a function."""
    tensors: dict[str, LazyTensor] = {}
    places: dict[str, Path] = {}
    for file in files:
        for name, tensor in read(file):
            if name in places:
                raise CheckpointError(
                    f"{file.name}: {name} is also in {places[name].name}. Remove the stale file."
                )
            tensors[name], places[name] = tensor, file
    return FileTensors(tensors=unwrapped(tensors), files=tuple(sorted(set(places.values()))))
