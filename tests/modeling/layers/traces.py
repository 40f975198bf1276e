"""Layers traced to one node."""

from collections.abc import Callable, Sequence

import onnxruntime  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

Function = Callable[..., tuple[Tensor, Tensor]]


def assert_one_node(
    function: Function, tensors: Sequence[Tensor], kind: str, *, rtol: float, atol: float
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
