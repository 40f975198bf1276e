"""A module on `meta`, run over several inputs side by side."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.export import streamed
from ortolan.export.streamed import Product, Result, run
from ortolan.modeling.weights import Weights, module_weights


class Odd(nn.Module):
    """A module that reads its weights in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.up = nn.Linear(8, 16)
        self.norm = nn.RMSNorm(16)
        self.down = nn.Linear(16, 8, bias=False)
        self.stored_transposed = nn.Parameter(torch.randn(8, 8))
        self.experts = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.down(self.norm(F.silu(self.up(x))))
        x = torch.addmm(self.up.bias[:8], x, self.stored_transposed)
        x = F.linear(x, self.experts[1]) + x @ self.experts[0].T
        # One input takes another path.
        if len(ids) > 4:
            x = self.down(self.up(x))
        return F.linear(x * self.stored_transposed.T.sum(), self.table.weight)


TEXTS = [torch.arange(count) for count in (3, 5, 1)]


def made() -> tuple[Odd, Odd]:
    """A module, and the same on `meta`."""
    torch.manual_seed(0)
    module = Odd()
    with torch.device("meta"):
        return module, Odd()


def calls(module: nn.Module) -> list[Callable[[], Any]]:
    return [partial(module, ids) for ids in TEXTS]


@pytest.mark.parametrize("read_bytes", [streamed.READ_BYTES, 100])
def test_a_module_without_memory_computes_what_it_computes_with_it(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "READ_BYTES", read_bytes)
    module, empty = made()
    results = {
        event.index: event.value
        for event in run(empty, module_weights(module), calls(empty))
        if isinstance(event, Result)
    }
    for index, ids in enumerate(TEXTS):
        torch.testing.assert_close(results[index], module(ids).detach(), rtol=1e-5, atol=1e-4)


def test_inputs_wait_for_each_other_at_every_product() -> None:
    module, empty = made()
    products = [
        (event.name, [len(x) for x in event.inputs])
        for event in run(empty, module_weights(module), calls(empty))
        if isinstance(event, Product)
    ]
    everyone = ["up.weight", "down.weight", "stored_transposed"]
    assert products[:3] == [(name, [3, 5, 1]) for name in everyone]
    assert sorted(products[3:]) == [
        ("down.weight", [5]),
        ("table.weight", [3, 1]),
        ("table.weight", [5]),
        ("up.weight", [5]),
    ]


class Rows(Weights):
    """Weights of a module that record reads of single rows."""

    def __init__(self, module: nn.Module) -> None:
        self._weights = module_weights(module)
        self.read: list[tuple[str, int]] = []

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        if stop == start + 1:
            self.read.append((name, start))
        return self._weights.rows(name, start, stop)


class Chosen(nn.Module):
    """A module in which an input chooses experts of two weights each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 8, 8))
        self.second = nn.Parameter(torch.randn(4, 8, 8))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor, experts: tuple[int, ...]) -> Tensor:
        for number in experts:
            x = x + F.linear(F.linear(x, self.first[number]).tanh(), self.second[number])
        out: Tensor = self.last(x)
        return out


def test_an_expert_is_read_once_for_all_inputs_and_not_where_none_chose_it() -> None:
    torch.manual_seed(0)
    module = Chosen()
    with torch.device("meta"):
        empty = Chosen()
    weights, texts = Rows(module), [(0, 1, 3), (3,), (1, 3), ()]
    x = torch.randn(5, 8)
    events = list(run(empty, weights, [partial(empty, x, experts) for experts in texts]))
    assert weights.read == [(name, row) for row in (0, 1, 3) for name in ("first", "second")]
    for event in events:
        if isinstance(event, Result):
            expected = module(x, texts[event.index]).detach()
            torch.testing.assert_close(event.value, expected, rtol=1e-5, atol=1e-5)
    # All inputs continue together.
    (product,) = (event for event in events if isinstance(event, Product))
    assert len(product.inputs) == len(texts)


def test_an_error_of_one_input_ends_the_run_and_every_thread() -> None:
    module, empty = made()

    def fails() -> Any:
        return empty.up(empty.table(torch.arange(2))) @ torch.ones(3)

    before = threading.active_count()
    with pytest.raises(RuntimeError):
        list(run(empty, module_weights(module), [*calls(empty), fails]))
    assert threading.active_count() == before


def test_a_run_that_is_left_early_ends_every_thread() -> None:
    module, empty = made()
    before = threading.active_count()
    events = run(empty, module_weights(module), calls(empty))
    next(events)
    events.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("read_bytes", [streamed.READ_BYTES, 100])
def test_inputs_that_read_some_weights_elsewhere_compute_with_those(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "READ_BYTES", read_bytes)
    module, empty = made()
    products = Mock(side_effect=streamed.product)
    monkeypatch.setattr(streamed, "product", products)
    others, found = [module], {}
    for name in ("down.weight", "table.weight", "experts", "up.bias"):
        other, _ = made()
        with torch.no_grad():
            other.get_parameter(name).mul_(1.5)
        others.append(other)
        found[name] = module_weights(other)
    instead = [{}, *({name: weights} for name, weights in found.items())]
    events = run(
        empty,
        module_weights(module),
        [partial(empty, TEXTS[0])] * len(others),
        instead=instead,
    )
    results = {each.index: each.value for each in events if isinstance(each, Result)}
    with torch.inference_mode():
        expected = [other(TEXTS[0]) for other in others]
    for number, wanted in enumerate(expected):
        torch.testing.assert_close(results[number], wanted, rtol=1e-4, atol=1e-4)
        assert (number == 0) == torch.equal(wanted, expected[0])
    # Equal products are computed once; a transposed weight that is read in parts counts twice.
    assert products.call_count < (4 if read_bytes > 100 else 5) * len(others)
