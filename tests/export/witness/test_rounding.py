"""Models that are disturbed, to see how much their numbers move."""

import torch
from torch import nn

from ortolan.export.witness.rounding import UNIT, disturbed


class Masked(nn.Module):
    """A part that reads numbers, ids and a mask by name."""

    def forward(self, values: torch.Tensor, *, ids: torch.Tensor, mask: torch.Tensor) -> object:
        return values, ids, mask


def test_parts_read_and_return_neighbours_while_a_model_is_disturbed() -> None:
    model, values = nn.Sequential(nn.Identity(), nn.Identity()), torch.ones(1000)
    with disturbed(model):
        moved = (model(values) - values).abs()
        again = model(values)
    assert UNIT <= moved.max() <= 4.5 * UNIT
    assert not torch.equal(again, values)
    assert torch.equal(model(values), values)


def test_ids_and_the_lowest_number_stay() -> None:
    ids, lowest = torch.arange(8), torch.full((8,), torch.finfo(torch.float32).min)
    part = Masked()
    with disturbed(part):
        values, same_ids, mask = part(torch.ones(8), ids=ids, mask=lowest)
    assert torch.equal(same_ids, ids)
    assert mask.isfinite().all()
    assert not torch.equal(values, torch.ones(8))
