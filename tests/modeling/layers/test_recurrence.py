"""Linear recurrence and causal convolution: formulas, steps, and traces of one node."""

from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor, nn

from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.recurrence import Recurrence
from ortolan.modeling.layers.recurrence import recur as recur_in_time

B, H, S, D, U = 2, 3, 7, 8, 4

GATES = {
    "linear": (None, False),
    "decay of a head": ((B, H, S), False),
    "decay of a channel": ((B, H, S, D), False),
    "delta rule": (None, True),
    "delta rule and decay of a head": ((B, H, S), True),
    "delta rule and decay of a channel": ((B, H, S, D), True),
}


def random(name: str, *, scale: float = 0.5) -> Recurrence:
    torch.manual_seed(0)
    shape, has_rate = GATES[name]
    return Recurrence(
        torch.randn(B, H, S, D),
        nn.functional.normalize(torch.randn(B, H, S, D), dim=-1),
        torch.randn(B, H, S, U),
        None if shape is None else -torch.rand(shape),
        torch.rand(B, H, S) if has_rate else None,
        scale,
    )


def recur(inputs: Recurrence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and outputs with heads before tokens, as in `State.recur`."""
    out, after = recur_in_time(inputs.turned(), state)
    return out.transpose(1, 2), after


def formula(inputs: Recurrence) -> Tensor:
    """The formula, one token and one head at a time."""
    out = torch.empty(B, H, S, U)
    for b in range(B):
        for h in range(H):
            state = torch.zeros(D, U)
            for s in range(S):
                q, k, v = (x[b, h, s] for x in inputs[:3])
                if inputs.decay is not None:
                    state = torch.diag(inputs.decay[b, h, s].exp().expand(D)) @ state
                if inputs.rate is not None:
                    v = inputs.rate[b, h, s] * (v - state.T @ k)
                state = state + torch.outer(k, v)
                out[b, h, s] = inputs.scale * state.T @ q
    return out


@pytest.mark.parametrize("name", GATES)
def test_recurrence_equals_the_formula(name: str) -> None:
    inputs = random(name)
    out, _ = recur(inputs, torch.zeros(B, H, D, U))
    torch.testing.assert_close(out, formula(inputs), rtol=1e-5, atol=1e-5)


def assert_one_node(
    function: Callable[..., tuple[Tensor, Tensor]],
    tensors: Sequence[Tensor],
    kind: str,
    *,
    rtol: float,
    atol: float,
) -> None:
    """Check that the trace of a function has one node of a kind, and the same outputs."""

    class Module(nn.Module):
        def forward(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
            return function(*arguments)

    program = torch.onnx.export(
        Module().eval(), tuple(tensors), dynamo=True, opset_version=24, verbose=False
    )
    assert program is not None
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count(kind) == 1
    assert "Conv" not in kinds
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [entry.name for entry in session.get_inputs()]
    outputs = session.run(None, dict(zip(names, map(Tensor.numpy, tensors), strict=True)))
    for actual, expected in zip(outputs, function(*tensors), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.onnx of itself
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("linear", True),
        ("decay of a channel", False),
        ("delta rule and decay of a head", False),
        ("delta rule and decay of a head", True),
    ],
)
def test_a_trace_is_one_node_with_the_same_outputs(name: str, *, shares: bool) -> None:
    values = random(name)
    if shares:
        values = values._replace(query=values.query[:, :1], key=values.key[:, :1])

    def recurred(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(tensors[:-1])
        fields: list[Any] = [next(rest) if isinstance(v, Tensor) else v for v in values]
        return recur(Recurrence(*fields), tensors[-1])

    tensors = [*(v for v in values if isinstance(v, Tensor)), torch.randn(B, H, D, U)]
    assert_one_node(recurred, tensors, "LinearAttention", rtol=1e-4, atol=1e-5)


# --- convolution --------------------------------------------------------------------------------

C = 6


def convolution(taps: int, *, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    random = torch.Generator().manual_seed(0)
    return (
        torch.randn(B, C, S, generator=random),
        torch.randn(C, 1, taps, generator=random),
        torch.randn(C, generator=random) if bias else None,
        torch.randn(B, C, taps - 1, generator=random),
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.onnx of itself
@pytest.mark.parametrize(("taps", "bias"), [(2, False), (4, True), (7, False)])
def test_a_traced_convolution_is_one_node_with_the_same_outputs(taps: int, *, bias: bool) -> None:
    def convolved(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, *rest, before = arguments
        return convolve(x, weight, rest[0] if bias else None, before)

    tensors = [argument for argument in convolution(taps, bias=bias) if argument is not None]
    assert_one_node(convolved, tensors, "CausalConvWithState", rtol=1e-5, atol=1e-6)
