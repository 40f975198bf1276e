"""The bare tiny model of every family, and of types that go through transformers."""

from functools import partial
from pathlib import Path

from tests.cases import FP32, QUICK, Case, Variant
from tests.cases.comparison import save_tiny
from tests.tiny import CONFIGS

from ortolan.export.options import ExportOptions

SPREADS = {"t5": 0.1}
"""For families with unscaled scores, whose attention would otherwise choose a single token."""

MAPS = Variant(
    name="maps",
    options=ExportOptions(attention="portable", attention_maps=True),
    tolerance=1e-4,
)


def write_type(model_type: str, folder: Path) -> None:
    """The tiny model of a type, without a tokenizer."""
    save_tiny(CONFIGS[model_type], folder, spread=SPREADS.get(model_type, 0.2))


def _type(model_type: str, *variants: Variant) -> Case:
    return Case(
        name=f"type {model_type}",
        family=model_type,
        write=partial(write_type, model_type),
        features=frozenset({"compared"}),
        variants=variants or (FP32,),
    )


COMMON = {
    "bert": _type("bert", QUICK, MAPS),
    "llama": _type("llama", QUICK),
    "marian": _type("marian", FP32, MAPS),
    "t5": _type("t5", FP32, MAPS),
    "vit": _type("vit", FP32, MAPS),
}
"""Families whose tests are in `make test-ci` too."""

OTHERS = tuple(_type(name) for name in CONFIGS if name not in COMMON)

FAMILIES = (*COMMON.values(), *OTHERS)
