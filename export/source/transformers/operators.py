"""Replaces operators that ONNX lacks with ones that it has, in models of transformers."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode


class Complex:
    """A complex tensor as two real ones, with the operations that rotary positions need.

    Attributes:
        real: of any shape.
        imag: of the same shape.
    """

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        self.real = real
        self.imag = imag

    @property
    def device(self) -> torch.device:
        """The device of both."""
        return self.real.device

    def to(self, device: torch.device) -> "Complex":
        """Move to another device."""
        return Complex(self.real.to(device), self.imag.to(device))

    def unsqueeze(self, axis: int) -> "Complex":
        """Add an axis."""
        return Complex(self.real.unsqueeze(axis), self.imag.unsqueeze(axis))

    def __getitem__(self, place: Any) -> "Complex":
        return Complex(self.real[place], self.imag[place])

    def __mul__(self, other: "Complex | Tensor | float") -> "Complex":
        if not isinstance(other, Complex):
            return Complex(self.real * other, self.imag * other)
        return Complex(
            self.real * other.real - self.imag * other.imag,
            self.real * other.imag + self.imag * other.real,
        )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle `torch.view_as_real` alone."""
        if func is not torch.view_as_real:
            return NotImplemented
        return torch.stack((args[0].real, args[0].imag), -1)


def _polar(length: Tensor, angle: Tensor) -> Complex:
    return Complex(length * angle.cos(), length * angle.sin())


def _view_as_complex(x: Tensor) -> Complex:
    return Complex(x[..., 0], x[..., 1])


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """Compute numbers instead: a trace cannot store the values of a tensor made in it."""
    match data:
        case bool() | int() | float():
            kind = torch.get_default_dtype() if isinstance(data, float) else _KINDS[type(data)]
            return torch.full((), data, dtype=dtype or kind)
        case list() | tuple() if data:
            return torch.stack([_tensor(item, dtype=dtype) for item in data])
        case _:
            return torch.tensor(data, dtype=dtype, **others)


_KINDS = {bool: torch.bool, int: torch.int64}


_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_OUTER = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def erfinv(x: Tensor) -> Tensor:
    """The inverse of the error function, exact to float32 rounding.

    Source: Giles 2010, "Approximating the erfinv function", and one step of Newton's method.
    """
    w = -torch.log((1 - x) * (1 + x))
    central, outer = _polynomial(_CENTRAL, w - 2.5), _polynomial(_OUTER, w.sqrt() - 3)
    y = torch.where(w < 5, central, outer) * x
    return y - (torch.erf(y) - x) * (math.sqrt(math.pi) / 2) * torch.exp(y * y)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


OPERATORS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.erfinv: erfinv,
    torch.polar: _polar,
    torch.special.erfinv: erfinv,
    torch.tensor: _tensor,
    torch.view_as_complex: _view_as_complex,
}


@contextmanager
def known_operators() -> Iterator[None]:
    """Replace operators with those in `OPERATORS`.

    Also stop distributions from checking their parameters, which have no values in a trace.
    """
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with _Known():
            yield
    finally:
        Distribution.set_default_validate_args(checks)


class _Known(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement of a function, or the function itself."""
        return OPERATORS.get(func, func)(*args, **(kwargs or {}))
