"""The adapters of a loaded model, by the names that requests choose them by."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ortolan.runtime import limits
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.bundle.adapter_folder import Adapter, Factors, open_adapter
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.interface import ADAPTERS
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.errors import AdapterError, InputError, shown
from ortolan.runtime.graph.adapters import JoinedFactors, adapted_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Opened adapters, numbered from 1."""

    names: tuple[str, ...]
    opened: tuple[Adapter, ...]

    @property
    def size(self) -> int:
        """Bytes of all factors."""
        return sum(u.size for adapter in self.opened for u in adapter.manifest.updates)

    def identities(self, bundle: str) -> tuple[str, ...]:
        """Identities of the states that each adapter computes with a bundle.

        The last bits of a row may depend on the width of all adapters together, so each identity
        covers all of them.
        """
        loaded = "\n".join((bundle, *(adapter.identity for adapter in self.opened)))
        return tuple(
            hashlib.sha256(f"{loaded}\n{number}".encode()).hexdigest()
            for number in range(1, 1 + len(self.opened))
        )

    def adaptation(self) -> Callable[[bytes], bytes]:
        """Read the factors of all adapters; return a function that adds them to a graph.

        The function raises AdapterError if the graph has no product for one of the updates.
        """
        parts: dict[str, list[tuple[int, Factors]]] = {}
        for number, adapter in enumerate(self.opened, 1):
            for weight, factors in adapter.factors().items():
                parts.setdefault(weight, []).append((number, factors))
        updates = {weight: _joined(owned) for weight, owned in parts.items()}
        return partial(adapted_graph, updates=updates, rows=ADAPTERS)


def open_adapters(paths: Mapping[str, str | os.PathLike[str]], bundle: Bundle) -> Adapters | None:
    """Open the adapters of a bundle; `None` if there are none."""
    if not isinstance(paths, Mapping):
        raise InputError(
            f"adapters must be a mapping from names to folders (got {shown(paths)}). "
            'Write adapters={"name": "adapter/"}.'
        )
    if not paths:
        return None
    _check_names(list(paths), bundle.manifest)
    opened = tuple(
        open_adapter(checked_path("adapters", path).absolute()) for path in paths.values()
    )
    for adapter in opened:
        adapter.check_bundle(bundle.manifest)
    adapters = Adapters(names=tuple(paths), opened=opened)
    if adapters.size > limits.MAX_ADAPTER_BYTES:
        raise AdapterError(
            f"All adapters together may have at most {limits.MAX_ADAPTER_BYTES} bytes of factors "
            f"(got {adapters.size}). Load fewer at once."
        )
    return adapters


def _check_names(names: Sequence[object], manifest: Manifest) -> None:
    if manifest.kind != "decoder":
        raise wrong_kind(manifest, what="adapters", expected="a decoder")
    if len(names) > limits.MAX_ADAPTERS:
        raise InputError(f"adapters: at most {limits.MAX_ADAPTERS} per model (got {len(names)}).")
    longest = limits.MAX_ADAPTER_NAME_LENGTH
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= longest:
            raise InputError(
                f"adapters: a name must have 1 to {longest} characters (got {shown(name)})."
            )


def _joined(owned: Sequence[tuple[int, Factors]]) -> JoinedFactors:
    return JoinedFactors(
        first=np.concatenate([factors.first for _, factors in owned], axis=1),
        second=np.concatenate([factors.second for _, factors in owned]),
        owners=tuple(number for number, factors in owned for _ in range(len(factors.second))),
    )
