"""Activations that are spelled out become one node.

Spec: ai.onnx Gelu, version 20 (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units").
"""

import math
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleSet, pattern


class FuseGelu(ir.passes.InPlacePass):
    """The formulas of Gelu become Gelu.

    Case 1: x / 2 * (1 + erf(x / sqrt(2))).
    Case 2: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), the last product in any of
        the ways in which models write it.
    Case 3: anything else: the nodes stay.

    The factors of a product may be in any order.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        return ir.passes.PassResult(model, modified=_RULES.apply_to_model(model) > 0)


_CUBIC = 0.044715
_SLOPE = math.sqrt(2 / math.pi)


def _erf(op: Any, x: Any) -> Any:
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Div(x, math.sqrt(2))), 1.0))


def _erf_of_product(op: Any, x: Any) -> Any:
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))


def _tanh_of_power(op: Any, x: Any) -> Any:
    inner = op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), _CUBIC)), _SLOPE)
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def _tanh_of_products(op: Any, x: Any) -> Any:
    inner = op.Mul(op.Mul(x, _SLOPE), op.Add(op.Mul(op.Mul(x, _CUBIC), x), 1.0))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def _gelu(op: Any, x: Any, **_: Any) -> Any:
    return op.Gelu(x)


def _gelu_tanh(op: Any, x: Any, **_: Any) -> Any:
    return op.Gelu(x, approximate="tanh")


_RULES = RewriteRuleSet(
    [
        *(pattern.RewriteRule(formula, _gelu) for formula in (_erf, _erf_of_product)),
        *(
            pattern.RewriteRule(formula, _gelu_tanh)
            for formula in (_tanh_of_power, _tanh_of_products)
        ),
    ],
    commute=True,
)
