"""Everything that can be exported has a case."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tests.cases import (
    Case,
    Variant,
    contrast,
    encoders,
    grids,
    image_encoders,
    images,
    modules,
    pairs,
    readers,
    sounds,
    texts,
    tiles,
)
from tests.tiny import OWN_FORMATS

from ortolan.export.options import DEFAULTS, Device, ExportOptions, PrecisionName
from ortolan.modeling.families import FAMILIES

TESTS = Path(__file__).parents[1]

CASES: tuple[Case, ...] = (
    *contrast.CASES,
    *encoders.CASES,
    *grids.CASES,
    *image_encoders.CASES,
    *images.CASES,
    *modules.CASES,
    *pairs.CASES,
    *readers.CASES,
    *sounds.CASES,
    *tiles.CASES,
    *texts.FAMILIES,
)

ELSEWHERE = {
    "option accept_difference": "export/witness/test_verdict.py",
    "option accept_unknown": "export/test_pipeline.py",
    "option adapter": "export/test_adapter.py",
    "option allow_cpu_nodes": "export/test_cuda.py",
    "option max_kl": "export/test_quantized.py",
    "option mtp": "end_to_end/test_mtp.py",
    "option prefill_precision=float": "export/test_quantized.py",
    "option prefill_precision=int8": "export/test_quantized.py",
    "option proof=full": "export/proof/test_probes.py",
    "option text_only": "export/test_images_in_prompts.py",
    "option tokenizer": "cases/test_encoders.py",
    "option via=family": "export/source/transformers/test_open.py",
    "option via=transformers": "export/source/transformers/test_open.py",
    "option witness": "export/witness/test_verdict.py",
    "device web": "end_to_end/test_site.py",
    "precision bf16": "export/test_cuda.py",
}
"""Where else these are exported, in tests. An entry that a case makes needless is an error."""


def everything() -> set[str]:
    """All that a user can choose, but defaults."""
    named = {f"family {name}" for name in FAMILIES.keys() - OWN_FORMATS}
    named |= {f"device {name}" for name in get_args(Device)}
    named |= {f"precision {name}" for name in get_args(PrecisionName)}
    hints = get_type_hints(ExportOptions)
    for each in fields(ExportOptions):
        choices = _choices(hints[each.name]) - {getattr(DEFAULTS, each.name)}
        named |= {f"option {each.name}={choice}" for choice in choices} or {f"option {each.name}"}
    return named


def _choices(hint: Any) -> set[str]:
    """Words of a `Literal`, or of a union with one."""
    if get_origin(hint) is tuple:
        return set()
    words = {
        word for part in get_args(hint) if not isinstance(part, str) for word in _choices(part)
    }
    return words | {word for word in get_args(hint) if isinstance(word, str)}


def shown(cases: Iterable[Case]) -> set[str]:
    """What some cases are examples of."""
    named = set()
    for case in cases:
        named |= {f"family {case.family}"}
        for variant in case.variants:
            named |= _chosen(variant)
    return named


def _chosen(variant: Variant) -> set[str]:
    precision = variant.precision
    bits: str = precision if isinstance(precision, str) else precision.name
    named = {f"device {variant.device}", f"precision {bits}"}
    for each in fields(ExportOptions):
        value = getattr(variant.options, each.name)
        if value != getattr(DEFAULTS, each.name):
            word = f"={value}" if isinstance(value, str) else ""
            named.add(f"option {each.name}{word}")
    return named


def test_every_family_precision_device_and_option_has_a_case() -> None:
    assert everything() - shown(CASES) - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() & shown(CASES) == set(), "a case shows it: remove the entry"
    assert ELSEWHERE.keys() - everything() == set()
    assert [name for name in ELSEWHERE.values() if not (TESTS / name).exists()] == []


def test_a_family_a_precision_and_an_option_without_a_case_are_named() -> None:
    missing = everything() - shown(case for case in CASES if case.name.startswith("type b"))
    assert {"family gpt2", "family llava", "precision int4", "option graphs=split"} <= missing
    assert "family bert" not in missing


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
