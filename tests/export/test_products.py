import pytest
import torch

from ortolan.export.products import linear


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
