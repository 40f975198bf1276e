"""User modules that read other tokens without their state are refused; others are not."""

import re

import pytest
import torch
from tests.export.locality.dishonest_modules import (
    DISHONEST,
    DISHONEST_STATES,
    OF_VALUES,
    Dishonest,
)
from tests.export.locality.user_modules import HONEST, VOCAB, Base
from torch import nn

from ortolan.export.locality import check as checked
from ortolan.export.locality.check import check_locality, probe_ids
from ortolan.export.locality.perturbation import other_ids
from ortolan.export.source.module import without_memory
from ortolan.export.trace.module import Carried, find_carried
from ortolan.modeling.errors import ConfigError


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the whole context, however slow this machine is."""
    monkeypatch.setattr(checked, "SECONDS", 60.0)


def check(module: nn.Module, carried: Carried | None = None) -> None:
    empty = without_memory(module)
    check_locality(
        module, empty, carried or find_carried(empty), context=Base.context_length, special=()
    )


@pytest.mark.parametrize(
    ("name", "late"),
    [
        pytest.param(name, late, marks=pytest.mark.slow if late else ())
        for name in DISHONEST
        for late in (False, True)
        if late or name != OF_VALUES
    ],
)
def test_a_module_that_reads_other_tokens_is_refused(name: str, late: bool) -> None:
    change, expected = DISHONEST[name]
    torch.manual_seed(0)
    with pytest.raises(ConfigError) as refused:
        check(Dishonest(change, late=late))
    text = str(refused.value)
    assert re.search(expected, text)
    assert "dishonest_modules.py, line " in text
    assert "a branch on" in text or re.search(r"(logits|query|key|value).* at token \d+ by", text)


@pytest.mark.parametrize("module", DISHONEST_STATES)
def test_a_module_that_misuses_its_state_is_refused(module: type[Base]) -> None:
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=DISHONEST_STATES[module]):
        check(module())


@pytest.mark.parametrize("module", HONEST)
def test_an_honest_module_is_accepted(module: type[Base]) -> None:
    torch.manual_seed(0)
    check(module())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_honest_modules_of_other_types_are_accepted(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(Base().to(dtype))
    with pytest.raises(ConfigError, match="reads other tokens"):
        check(Dishonest(lambda ids, x: x + x.mean(1, keepdim=True)).to(dtype))


def test_every_id_occurs_and_special_ones_first() -> None:
    ids = probe_ids(1000, (500, 2000, 7))
    assert [next(ids) for _ in range(6)] == [500, 7, 0, 1, 998, 999]
    assert {next(ids) for _ in range(994)} == set(range(1000)) - {500, 7, 0, 1, 998, 999}
    assert {next(probe_ids(1, ())) for _ in range(3)} == {0}
    text = torch.arange(60)[None]
    assert not (other_ids(text, VOCAB) == text).any()
