"""Lazy tensors: operations compute what PyTorch computes, from no more rows than they need."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.lazy_tensor import LazyTensor, rows_of, stored_tensor, whole_of

CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "stacked": (lambda a, b: torch.stack([a, b, a]), True),
    "stacked inside": (lambda a, b: torch.stack([a, b], dim=1), True),
    "concatenated": (lambda a, b: torch.cat([a, b]), True),
    "concatenated inside": (lambda a, b: torch.cat([a, b], dim=1), True),
    "one of two parts": (lambda a, b: torch.chunk(a, 2)[1], True),
    "a part by size": (lambda a, b: torch.split(b, [1, 5])[1], True),
    "half of every row": (lambda a, b: torch.chunk(a, 2, dim=1)[0].contiguous(), True),
    "a slice": (lambda a, b: a[2:5], True),
    "a slice from the end": (lambda a, b: a[-3:-1], True),
    "a slice from before the start": (lambda a, b: a[-9:4], True),
    "the last part": (lambda a, b: torch.narrow(a, -2, -2, 2), True),
    "stacked by a negative axis": (lambda a, b: torch.stack([a, b], dim=-3), True),
    "the last column": (lambda a, b: a[:, -1], True),
    "every other column": (lambda a, b: a[:, ::2], True),
    "every other row": (lambda a, b: a[::2], True),
    "rows in another order": (lambda a, b: a[torch.tensor([4, 0, 5, 1])], True),
    "transposed": (lambda a, b: a.T.contiguous(), True),
    "transposed inside": (lambda a, b: torch.stack([a, b]).transpose(1, 2), True),
    "split rows": (lambda a, b: a.reshape(6, 2, 2), True),
    "heads of rows": (lambda a, b: F.pad(a.view(3, 2, 4), (0, 0, 0, 1)).flatten(0, 1), True),
    "wider rows": (lambda a, b: a.reshape(4, 6), True),
    "added to a tensor": (lambda a, b: a + torch.ones(6, 4), True),
    "permuted rows": (lambda a, b: a.view(3, 2, 4).transpose(0, 1).reshape(6, 4), False),
    "sums": (lambda a, b: -(a + b) * 2, True),
    "logarithms of halves": (lambda a, b: torch.log(a.exp()[:3]).to(torch.float32), True),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_tensor(name: str) -> None:
    function, is_sliced = CASES[name]
    torch.manual_seed(0)
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    read = []

    def lazy(tensor: Tensor) -> LazyTensor:
        def reader(start: int, stop: int, axis: int) -> Tensor:
            read.append((start, stop))
            return tensor.narrow(axis, start, stop - start)

        return stored_tensor(tensor.shape, reader)

    expected, got = function(a, b), function(lazy(a), lazy(b))
    assert not read
    assert got.shape == expected.shape
    assert isinstance(got, LazyTensor)
    assert (0 in got.axes) == is_sliced
    for start in range(len(expected)):
        assert torch.equal(rows_of(got, start, start + 1), expected[start : start + 1])
    assert torch.equal(whole_of(got), expected)
    for axis, size in enumerate(expected.shape):
        assert torch.equal(got.read(1, size, axis), expected.narrow(axis, 1, size - 1))


def test_reading_a_number_reads_the_tensor() -> None:
    tensor = torch.tensor([1.0, 2.0])
    lazy = stored_tensor(tensor.shape, lambda start, stop, _: tensor[start:stop])
    assert lazy.sum().item() == 3.0
