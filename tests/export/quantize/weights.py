"""Weights, inputs and errors for the tests of rounding."""

import torch
from torch import Tensor

from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, dequantize, into_groups
from ortolan.export.scheme import Scheme


def gaussian(rows: int, inputs: int, *, seed: int = 0) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)) * 0.05


def heavy_tailed(rows: int, inputs: int) -> Tensor:
    """Student's t with three degrees of freedom, which has outliers."""
    chance = torch.Generator().manual_seed(1)
    normal = torch.randn(4, rows, inputs, generator=chance)
    return normal[0] / normal[1:].square().mean(0).sqrt() * 0.05


def correlated_inputs(tokens: int, inputs: int) -> Tensor:
    """Activations `(tokens, K)` of few directions, unequal sizes and some noise."""
    chance = torch.Generator().manual_seed(2)
    directions = torch.randn(inputs // 8, inputs, generator=chance)
    x = torch.randn(tokens, inputs // 8, generator=chance) @ directions
    sizes = torch.rand(inputs, generator=chance) * 2 + 0.1
    return (x + torch.randn(x.shape, generator=chance)) * sizes


def on_the_grid(scheme: Scheme, rows: int, inputs: int) -> Tensor:
    """Numbers that the scheme represents exactly, with both ends in every group."""
    chance = torch.Generator().manual_seed(3)
    groups = scheme.groups(inputs)
    shape = (rows, groups * scheme.group)
    steps = torch.randint(0, scheme.largest + 1, shape, generator=chance).view(rows, groups, -1)
    steps[..., 0], steps[..., 1] = 0, scheme.largest
    zero = scheme.middle if scheme.symmetric else 3
    sizes = 2.0 ** torch.randint(-6, 3, (rows, groups, 1), generator=chance)
    return ((steps - zero) * sizes).view(rows, -1)[:, :inputs]


def quantize_gptq(
    weight: Tensor, hessian: Tensor, scheme: Scheme, *, damping: float = gptq.DAMPING
) -> Codes:
    return gptq.round_columns(weight, gptq.factorize(hessian, damping=damping), scheme)


def relative_error(weight: Tensor, codes: Codes) -> float:
    return float((weight - dequantize(codes)).norm() / weight.norm())


def squared_error(weight: Tensor, codes: Codes) -> float:
    return float((weight - dequantize(codes)).square().sum())


def group_errors(weight: Tensor, codes: Codes) -> Tensor:
    """Squared error of every group of every row."""
    return into_groups(weight - dequantize(codes), codes.scheme.group).square().sum(-1)


def output_error(weight: Tensor, codes: Codes, x: Tensor) -> float:
    """`||x W - x Q||`, relative."""
    wanted = x @ weight.T
    return float((wanted - x @ dequantize(codes).T).norm() / wanted.norm())
