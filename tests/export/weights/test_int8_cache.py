import pytest
import torch

from ortolan.export.passes.quantize_cache import Turned
from ortolan.export.weights.int8_cache import reach_of_keys
from ortolan.modeling.config import RotaryPositions
from ortolan.modeling.layers.ops import Rotary
from ortolan.modeling.layers.positions import rotary_tables
from ortolan.modeling.layers.rotation import rotate

HEADS, TOKENS, WIDTH, POSITIONS = 2, 5, 32, 4000


@pytest.mark.parametrize("channels", [WIDTH, 16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_stay_within_their_reach_at_every_position(channels: int, interleaved: bool) -> None:
    torch.manual_seed(0)
    keys_KSD = torch.randn(HEADS, TOKENS, WIDTH) * torch.rand(WIDTH).exp()
    tables = rotary_tables(RotaryPositions(dim=channels, theta=100.0), POSITIONS)
    furthest = torch.zeros(HEADS, 1, WIDTH)
    for position in range(0, POSITIONS, 7):
        cos, sin = (table[position][None].expand(TOKENS, -1) for table in tables)
        turned = rotate(keys_KSD, Rotary(cos, sin, interleaved))
        furthest = torch.maximum(furthest, turned.abs().amax(1, keepdim=True))
    reach = reach_of_keys(keys_KSD, Turned(channels, interleaved))
    assert (furthest <= reach * 1.0001).all()
    assert (furthest >= reach * 0.95).all()


def test_keys_that_others_turned_reach_as_far_as_the_furthest_of_their_head() -> None:
    keys_KSD = torch.tensor([[[1.0, -3.0]], [[0.5, 0.25]]])
    assert reach_of_keys(keys_KSD, None).tolist() == [[[3.0, 3.0]], [[0.5, 0.5]]]
