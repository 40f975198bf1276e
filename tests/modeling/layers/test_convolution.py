import pytest
import torch
import torch.nn.functional as F
from tests.modeling.layers.traces import assert_one_node
from torch import Tensor

from ortolan.modeling.layers.convolution import convolve

B, C, S = 2, 6, 7


def inputs(taps: int, *, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    random = torch.Generator().manual_seed(0)
    return (
        torch.randn(B, C, S, generator=random),
        torch.randn(C, 1, taps, generator=random),
        torch.randn(C, generator=random) if bias else None,
        torch.randn(B, C, taps - 1, generator=random),
    )


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_chunks_equal_the_whole_sequence(taps: int) -> None:
    x, weight, bias, _ = inputs(taps, bias=True)
    whole = F.conv1d(F.pad(x, (taps - 1, 0)), weight, bias, groups=C)
    before, pieces = torch.zeros(B, C, taps - 1), []
    for part in torch.split(x, [1, 4, 2], -1):
        out, before = convolve(part, weight, bias, before)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, -1), whole)
    torch.testing.assert_close(before, x[..., S - taps + 1 :])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.onnx of itself
@pytest.mark.parametrize(("taps", "bias"), [(2, False), (4, True), (7, False)])
def test_a_trace_is_one_node_with_the_same_outputs(taps: int, *, bias: bool) -> None:
    def convolved(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, *rest, before = arguments
        return convolve(x, weight, rest[0] if bias else None, before)

    tensors = [argument for argument in inputs(taps, bias=bias) if argument is not None]
    assert_one_node(convolved, tensors, "CausalConvWithState", rtol=1e-5, atol=1e-6)
