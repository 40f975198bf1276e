import pytest
import torch
from tests.modeling.mixers import MIXERS, hybrid

from ortolan.modeling.models.transformer import build
from ortolan.modeling.training.tasks.task import SKIPPED, initialise


@pytest.mark.parametrize("name", ["gated-delta", "state-space-channels", "linear-recurrence"])
def test_decay_rates_keep_their_initial_values(name: str) -> None:
    module = build(hybrid(MIXERS[name]))
    before = {key: value.clone() for key, value in module.named_parameters()}

    initialise(module, layers=6)

    unchanged = [key for key in before if key.rpartition(".")[2] in SKIPPED]
    assert unchanged
    after = dict(module.named_parameters())
    assert all(torch.equal(before[key], after[key]) for key in unchanged)
    assert not torch.equal(before["embedding.weight"], after["embedding.weight"])
