"""User modules that read other tokens without their state are refused; others are not."""

import re

import pytest
from tests.export.locality.user_modules import (
    DISHONEST,
    HONEST,
    VOCAB,
    Base,
    Dishonest,
    Dispatched,
    FlagWithoutState,
)
from torch import nn

from ortolan.export.locality.check import check_locality
from ortolan.export.locality.perturbation import check_perturbed
from ortolan.export.source.module import without_memory
from ortolan.export.trace.module import find_carried
from ortolan.modeling.errors import ConfigError

QUICK = ("a mean over the batch", False)


def check(module: nn.Module) -> bool:
    empty = without_memory(module)
    return check_locality(
        empty, context=Base.context_length, takes_one=find_carried(empty).takes_one
    )


@pytest.mark.parametrize(
    ("name", "late"),
    [
        pytest.param(name, late, marks=() if (name, late) == QUICK else pytest.mark.slow)
        for name in DISHONEST
        for late in (False, True)
    ],
)
def test_a_module_that_reads_other_tokens_is_refused(name: str, late: bool) -> None:
    change, expected = DISHONEST[name]
    with pytest.raises(ConfigError) as refused:
        check(Dishonest(change, late=late))
    assert re.search(expected, str(refused.value))
    assert "user_modules.py, line " in str(refused.value)


@pytest.mark.slow
def test_a_flag_without_a_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cumsum in `return x \+ \(x.*` .*line \d+, in after"):
        check(FlagWithoutState())


def perturb(module: nn.Module, *, joins: bool = False) -> None:
    check_perturbed(
        module, without_memory(module), vocab_size=VOCAB, context=Base.context_length, joins=joins
    )


@pytest.mark.parametrize(
    "module",
    [HONEST[0], *(pytest.param(module, marks=pytest.mark.slow) for module in HONEST[1:])],
)
def test_an_honest_module_is_accepted(module: type[Base]) -> None:
    name = module.__name__
    assert check(module()) == (name in ("Summed", "Looped", "Linear", "Rare"))
    if name != "Looped":  # reading hundreds of tokens one by one is slow
        perturb(module(), joins=name in ("Summed", "Linear", "Rare"))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a flag once token 7 was seen", "tokens"),
        ("600 tokens back", "tokens"),
        ("sorted over the tokens", "tokens"),
        ("a mean over the batch", "rows"),
    ],
)
def test_numbers_alone_show_other_tokens(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"other {what}"):
        perturb(Dishonest(DISHONEST[name][0], late=True))


@pytest.mark.slow
def test_tokens_dispatched_to_experts_are_left_to_the_numbers() -> None:
    module = without_memory(Dispatched())
    assert not check_locality(module, context=Base.context_length, takes_one=False)
    perturb(Dispatched())
