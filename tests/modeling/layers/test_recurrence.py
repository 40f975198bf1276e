import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor, nn

from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.recurrence import Recurrence
from ortolan.modeling.layers.recurrence import recur as recur_in_time
from ortolan.modeling.state import CachedState, State

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


def recur(given: Recurrence, state: Tensor) -> tuple[Tensor, Tensor]:
    """With heads before tokens, as `State.recur` has them."""
    out, after = recur_in_time(given.turned(), state)
    return out.transpose(1, 2), after


def by_hand(given: Recurrence) -> Tensor:
    """A token and a head at a time, as the formula is written."""
    out = torch.empty(B, H, S, U)
    for b in range(B):
        for h in range(H):
            state = torch.zeros(D, U)
            for s in range(S):
                q, k, v = (each[b, h, s] for each in given[:3])
                if given.decay is not None:
                    state = torch.diag(given.decay[b, h, s].exp().expand(D)) @ state
                if given.rate is not None:
                    v = given.rate[b, h, s] * (v - state.T @ k)
                state = state + torch.outer(k, v)
                out[b, h, s] = given.scale * state.T @ q
    return out


@pytest.mark.parametrize("name", GATES)
def test_outputs_are_those_of_the_formula(name: str) -> None:
    given = random(name)
    out, _ = recur(given, torch.zeros(B, H, D, U))
    torch.testing.assert_close(out, by_hand(given), rtol=1e-5, atol=1e-5)


def pieces(given: Recurrence, start: int, stop: int) -> dict[str, Tensor | float | None]:
    """The tokens `[start:stop]`, as `State.recur` takes them."""
    return {
        name: value[:, :, start:stop] if isinstance(value, Tensor) else value
        for name, value in given._asdict().items()
    }


def test_a_state_continues_where_it_stopped() -> None:
    given = random("delta rule and decay of a head")
    whole = State.whole().recur("it", **pieces(given, 0, S))  # type: ignore[arg-type]
    memory = {"it": torch.zeros(B, H, D, U)}
    lengths = StepLengths(torch.zeros(B, dtype=torch.int32), torch.tensor(1, dtype=torch.int32))
    got = []
    for start, stop in ((0, 4), (4, 5), (5, S)):
        state = CachedState(lengths, {}, memory)
        got.append(state.recur("it", **pieces(given, start, stop)))  # type: ignore[arg-type]
        memory = state.kept
    torch.testing.assert_close(torch.cat(got, 2), whole)


def test_heads_may_share_queries_and_keys() -> None:
    given = random("delta rule and decay of a head")
    one = given._replace(query=given.query[:, :1], key=given.key[:, :1])
    each = given._replace(query=one.query.expand(-1, H, -1, -1), key=one.key.expand(-1, H, -1, -1))
    for got, wanted in zip(recur(one, zeros()), recur(each, zeros()), strict=True):
        torch.testing.assert_close(got, wanted)


def zeros() -> Tensor:
    return torch.zeros(B, H, D, U)


def test_gradients_flow() -> None:
    given = random("delta rule and decay of a channel")
    given.key.requires_grad_()
    recur(given, torch.zeros(B, H, D, U))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert given.key.grad is not None
    assert bool(given.key.grad.abs().sum() > 0)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.onnx of itself
@pytest.mark.parametrize("name", ["linear", "decay of a channel", "delta rule and decay of a head"])
@pytest.mark.parametrize("shares", [False, True])
def test_a_trace_has_one_node_that_computes_the_same(name: str, *, shares: bool) -> None:
    given = random(name)
    if shares:
        given = given._replace(query=given.query[:, :1], key=given.key[:, :1])

    class Module(nn.Module):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            found = iter(tensors[:-1])
            each = [next(found) if isinstance(value, Tensor) else value for value in given]
            return recur(Recurrence(*each), tensors[-1])  # type: ignore[arg-type]

    state = torch.randn(B, H, D, U)
    inputs = (*(value for value in given if isinstance(value, Tensor)), state)
    program = torch.onnx.export(
        Module().eval(), inputs, dynamo=True, opset_version=24, verbose=False
    )
    assert program is not None
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count("LinearAttention") == 1
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = dict(
        zip([i.name for i in session.get_inputs()], map(Tensor.numpy, inputs), strict=True)
    )
    for got, expected in zip(session.run(None, feeds), recur(given, state), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-5)
