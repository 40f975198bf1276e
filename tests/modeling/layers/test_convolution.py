import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
def test_the_tokens_before_are_those_of_a_longer_text(taps: int) -> None:
    x, weight, bias, _ = inputs(taps, bias=True)
    whole = F.conv1d(F.pad(x, (taps - 1, 0)), weight, bias, groups=C)
    before, pieces = torch.zeros(B, C, taps - 1), []
    for part in torch.split(x, [1, 4, 2], -1):
        out, before = convolve(part, weight, bias, before)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, -1), whole)
    torch.testing.assert_close(before, x[..., S - taps + 1 :])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.onnx of itself
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("taps", [2, 3, 4, 5, 7])
def test_a_trace_has_one_node_that_computes_the_same(taps: int, *, bias: bool) -> None:
    class Module(nn.Module):
        def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
            *rest, before = given
            x, weight = rest[:2]
            return convolve(x, weight, rest[2] if bias else None, before)

    given = inputs(taps, bias=bias)
    tensors = tuple(each for each in given if each is not None)
    program = torch.onnx.export(
        Module().eval(), tensors, dynamo=True, opset_version=24, verbose=False
    )
    assert program is not None
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count("CausalConvWithState") == 1
    assert "Conv" not in kinds
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = dict(
        zip([i.name for i in session.get_inputs()], map(Tensor.numpy, tensors), strict=True)
    )
    for got, expected in zip(session.run(None, feeds), convolve(*given), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=1e-6)
