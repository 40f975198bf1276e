"""Products of matrices, and rotations of channels."""

import pytest
import torch

from ortolan.export.products import linear
from ortolan.export.rotation import rotated, rotation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (0,)])
def test_product_is_that_of_numpy(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(*shape, 12, dtype=dtype), torch.randn(7, 12, dtype=dtype)
    wanted = x.double().numpy() @ weight.double().numpy().T
    torch.testing.assert_close(linear(x, weight), torch.from_numpy(wanted).to(dtype))


def test_views_are_read_as_they_are_seen() -> None:
    x, table = torch.randn(20, 30), torch.randn(40, 50)
    for weight in (table[3:9, 5:17], table[5:17, 3:9].T, table[:, :12], table.T[:, :12]):
        product = linear(x[2:8, 4:16], weight)
        torch.testing.assert_close(product, x[2:8, 4:16] @ weight.T)


@pytest.mark.parametrize("width", [1, 7, 48, 576, 2048])
def test_a_rotation_is_orthogonal(width: int) -> None:
    q = rotated(torch.eye(width))
    torch.testing.assert_close(q @ q.T, torch.eye(width), rtol=0, atol=5e-6)


@pytest.mark.parametrize("width", [48, 576, 2048])
def test_single_channels_and_common_offsets_spread_over_all_channels(width: int) -> None:
    for row in (torch.eye(width)[3], torch.ones(width)):
        spread = rotated(row[None])[0]
        # at most: normal numbers reach 3 to 4 times their mean square
        assert float(spread.abs().max() / spread.square().mean().sqrt()) < 4.5


def test_the_factors_are_those_of_the_product() -> None:
    signs, left, right = rotation(48)
    torch.testing.assert_close(rotated(torch.eye(48)), signs[:, None] * torch.kron(left, right))
    assert torch.equal(left, left.T)
    assert torch.equal(right, right.T)
