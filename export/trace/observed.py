"""A state that checks what a module passes to it, and knows what the module carries."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import WholeState

ROWS, TOKENS = 1, 3
"""Rows and tokens of the forward that shows what a module carries."""


class ObservedState(WholeState):
    """A state that checks the axes of what a module passes to it."""

    def seen(self) -> dict[object, object]:
        """What is known of each state so far, by the keys of `Carried.keyed_states`."""
        return {
            **{layer: spec for layer, spec in self.layers.items()},
            **{("extended", name): shape for name, shape in self.extended.items()},
            **{("kept", name): shape for name, shape in self.kept.items()},
        }

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Check queries, keys and values."""
        for kind, x in (("queries", query), ("keys", key), ("values", value)):
            if x is not None:
                call = f"attend: the {kind} of layer {layer}"
                _check_axes(call, x, ("batch", "heads", "tokens", "channels"))
        return super().attend(layer, query, key, value, **options)

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Check the channels."""
        _check_axes(f"convolve: x of {name!r}", x, ("batch", "channels", "tokens"))
        return super().convolve(name, x, weight, bias)

    def tokens(self, x: Tensor) -> Sequence[Tensor]:
        """Check the vectors."""
        _check_axes("tokens: x", x, ("batch", "tokens"))
        return super().tokens(x)

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        _check_axes(f"recall: like of {name!r}", like, ("batch",))
        return super()._recall(name, shape, like)

    def _keep(self, name: str, value: Tensor) -> None:
        _check_axes(f"keep: the value of {name!r}", value, ("batch",))
        super()._keep(name, value)

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        _check_axes(f"extend: x of {name!r}", x, ("batch", "tokens", "channels"))
        return super()._extend(name, x)


def _check_axes(call: str, x: Tensor, axes: Sequence[str]) -> None:
    """Refuse a tensor whose rows or tokens lie on another axis."""
    sizes = {"batch": ROWS, "tokens": TOKENS}
    is_open = axes[-1] in sizes and len(axes) < 3  # further axes may follow
    has_axes = x.dim() >= len(axes) if is_open else x.dim() == len(axes)
    if not has_axes or any(
        size != sizes.get(axis, size) for size, axis in zip(x.shape, axes, strict=False)
    ):
        listed = ", ".join((*axes, "...") if is_open else axes)
        raise ConfigError(
            f"{call} must be ({listed}) (got {tuple(x.shape)} for {ROWS} row of {TOKENS} tokens). "
            "Swap axes before the call."
        )
