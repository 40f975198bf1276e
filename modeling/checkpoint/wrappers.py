"""Names of tensors without the parts that wrappers of training add.

`torch.compile`, data parallelism, FSDP, activation checkpointing and PEFT wrap a module, and a
state dict that was saved from the wrapper names it in every tensor.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from ortolan.modeling.errors import CheckpointError

T = TypeVar("T")

ANYWHERE = (
    *("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module."),
)
"""Parts of names that a wrapper adds wherever a module inside the model is wrapped."""

AROUND = ("module.", "base_model.model.")
"""Prefixes of wrappers around a whole model, which all of its tensors have."""


def unwrapped(tensors: Mapping[str, T]) -> dict[str, T]:
    """The same tensors under the names that they have in the model."""
    names = {name: _without(name) for name in tensors}
    while prefix := _around(names.values()):
        names = {name: _without(inner.removeprefix(prefix)) for name, inner in names.items()}
    origins: dict[str, str] = {}
    for name, inner in names.items():
        if origins.setdefault(inner, name) != name:
            raise CheckpointError(
                f"{origins[inner]} and {name} both name {inner}. Save the state_dict() of the "
                "model again, without its wrappers."
            )
    return {inner: tensors[name] for inner, name in origins.items()}


def _around(names: Collection[str]) -> str | None:
    """The prefix of a wrapper around the whole model; None if there is none."""
    wrapped = (prefix for prefix in AROUND if all(name.startswith(prefix) for name in names))
    return next(wrapped, None) if names else None


def _without(name: str) -> str:
    for part in ANYWHERE:
        name = name.removeprefix(part).replace(f".{part}", ".")
    return name
