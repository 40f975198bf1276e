"""Fuse the formulas of Gelu into one node.

Spec: ai.onnx Gelu, version 20 (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units").
"""

import math
from typing import Any

from onnxscript.rewriter import RewritePass, RewriteRuleSet, pattern

_CUBIC = 0.044715
_SLOPE = math.sqrt(2 / math.pi)


def _half_times(op: Any, x: Any, inner: Any) -> Any:
    return op.Mul(op.Mul(x, 0.5), op.Add(inner, 1.0))


def _erf_of_quotient(op: Any, x: Any) -> Any:
    return _half_times(op, x, op.Erf(op.Div(x, math.sqrt(2))))


def _erf_of_product(op: Any, x: Any) -> Any:
    return _half_times(op, x, op.Erf(op.Mul(x, math.sqrt(0.5))))


def _tanh_of_power(op: Any, x: Any) -> Any:
    inner = op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), _CUBIC)), _SLOPE)
    return _half_times(op, x, op.Tanh(inner))


def _tanh_of_products(op: Any, x: Any) -> Any:
    inner = op.Mul(op.Mul(x, _SLOPE), op.Add(op.Mul(op.Mul(x, _CUBIC), x), 1.0))
    return _half_times(op, x, op.Tanh(inner))


def _gelu(op: Any, x: Any, **_: Any) -> Any:
    return op.Gelu(x)


def _gelu_tanh(op: Any, x: Any, **_: Any) -> Any:
    return op.Gelu(x, approximate="tanh")


fuse_gelu = RewritePass(
    RewriteRuleSet(
        [
            pattern.RewriteRule(_erf_of_quotient, _gelu),
            pattern.RewriteRule(_erf_of_product, _gelu),
            pattern.RewriteRule(_tanh_of_power, _gelu_tanh),
            pattern.RewriteRule(_tanh_of_products, _gelu_tanh),
        ],
        commute=True,
    )
)
"""Replace the formulas of Gelu, with the factors of a product in any order.

Case 1: x / 2 * (1 + erf(x / sqrt(2))).
Case 2: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), with the last product in any of the
    forms that models use.
Case 3: otherwise: keep.
"""
