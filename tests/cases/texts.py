"""Decoders of texts, and the bare tiny model of every family."""

from functools import partial
from pathlib import Path

from tests.cases import FP32, QUICK, Case
from tests.cases.comparison import save_tiny
from tests.tiny import FAMILY_CONFIGS

SPREADS = {"t5": 0.1}
"""For families with unscaled scores, whose attention would otherwise choose a single token."""

AT_ONCE = ("llama", "bert")
"""Families whose tests are quick."""


def write_family(model_type: str, folder: Path) -> None:
    """The tiny model of a family, without a tokenizer."""
    save_tiny(FAMILY_CONFIGS[model_type], folder, spread=SPREADS.get(model_type, 0.2))


def _family(model_type: str) -> Case:
    return Case(
        name=f"family {model_type}",
        family=model_type,
        write=partial(write_family, model_type),
        features=frozenset({"compared"}),
        variants=(QUICK if model_type in AT_ONCE else FP32,),
    )


FAMILIES: tuple[Case, ...] = tuple(map(_family, FAMILY_CONFIGS))
