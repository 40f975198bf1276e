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
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("taps", [2, 3, 4, 5, 7])
def test_a_trace_is_one_node_with_the_same_outputs(taps: int, *, bias: bool) -> None:
    class Module(nn.Module):
        def forward(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
            *rest, before = arguments
            x, weight = rest[:2]
            return convolve(x, weight, rest[2] if bias else None, before)

    arguments = inputs(taps, bias=bias)
    tensors = tuple(argument for argument in arguments if argument is not None)
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
    for actual, expected in zip(session.run(None, feeds), convolve(*arguments), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-5, atol=1e-6)
