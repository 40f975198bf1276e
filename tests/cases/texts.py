"""The bare tiny model of every family."""

from functools import partial
from pathlib import Path

from tests.cases import FP32, QUICK, Case, Variant
from tests.cases.comparison import save_tiny
from tests.tiny import FAMILY_CONFIGS

from ortolan.export.options import ExportOptions

SPREADS = {"t5": 0.1}
"""For families with unscaled scores, whose attention would otherwise choose a single token."""

MAPS = Variant(
    name="maps",
    options=ExportOptions(attention="portable", attention_maps=True),
    tolerance=1e-4,
)


def write_family(model_type: str, folder: Path) -> None:
    """The tiny model of a family, without a tokenizer."""
    save_tiny(FAMILY_CONFIGS[model_type], folder, spread=SPREADS.get(model_type, 0.2))


def _family(model_type: str, *variants: Variant) -> Case:
    return Case(
        name=f"family {model_type}",
        family=model_type,
        write=partial(write_family, model_type),
        features=frozenset({"compared"}),
        variants=variants or (FP32,),
    )


COMMON = {
    "bert": _family("bert", QUICK, MAPS),
    "llama": _family("llama", QUICK),
    "marian": _family("marian", FP32, MAPS),
    "t5": _family("t5", FP32, MAPS),
    "vit": _family("vit", FP32, MAPS),
}
"""Families whose tests are in `make test-ci` too."""

OTHERS = tuple(_family(name) for name in FAMILY_CONFIGS if name not in COMMON)

FAMILIES = (*COMMON.values(), *OTHERS)
