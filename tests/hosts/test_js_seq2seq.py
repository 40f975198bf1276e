"""Encoder-decoders in JavaScript against Python: equal tokens, whatever the search."""

from pathlib import Path
from typing import Any

import pytest
from tests.hosts.js_cases import Calls
from tests.hosts.js_runs import run_tests
from tests.runtime import tiny_translators
from tests.tiny.tokenizers import of_characters, with_ends

import ortolan
from ortolan.runtime import Sampling

pytestmark = pytest.mark.slow

SOURCES = ["Hello!", "a", "The quick brown fox jumps", "12 + 3"]

SEARCHES: list[dict[str, Any]] = [
    {"beams": 3},
    {"beams": 4, "n_best": 4, "max_new_tokens": 6},
    {"beams": 4, "n_best": 2, "length_penalty": 2.0},
    {"beams": 3, "length_penalty": -1.0, "early_stopping": True},
    {"beams": 5, "length_penalty": 0.5, "early_stopping": "never"},
    {"beams": 2, "first": "R"},
]

REFUSED: list[dict[str, Any]] = [
    {"beams": 0},
    {"beams": 2, "n_best": 3},
    {"n_best": 2},
    {"beams": 2, "stop": ["a"]},
    {"beams": 2, "early_stopping": "later"},
    {"first": "two"},
    {"first": 9999},
    {"max_new_tokens": 9999},
    {"min_new_tokens": 9, "max_new_tokens": 3},
]


def exported(family: str, folder: Path) -> Path:
    tiny_translators.reference(family).save_pretrained(folder / "checkpoint")
    tokenizer = with_ends(of_characters(), "$A </s>")
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    options = ortolan.ExportOptions(witness=False)
    ortolan.export(folder / "checkpoint", folder / family, device="web", options=options)
    return folder / family


def calls_of(bundle: Path) -> Calls:
    calls = Calls(bundle, device="cpu")
    calls.add("generate", SOURCES, max_new_tokens=24)
    calls.add("generate", "Hello!", ignore_eos=True, max_new_tokens=30)
    calls.add("generate", "Hello!", min_new_tokens=5, max_new_tokens=20, stop_tokens=[7])
    calls.add("generate", [[5, 6, 7], [9]], first="Q", max_new_tokens=5)
    drawn = Sampling(temperature=1.2, top_k=20, top_p=0.9, repetition_penalty=1.1, seed=5)
    calls.add("generate", SOURCES, ignore_eos=True, max_new_tokens=12, sampling=drawn)
    for options in SEARCHES:
        calls.add("generate", SOURCES, **{"max_new_tokens": 16} | options)
    for options in REFUSED:
        calls.add("generate", "a", **options)
    for wrong in ("", "x" * 600, [], [5, 9999]):
        calls.add("generate", wrong)
    return calls


def test_translators_equal_those_of_python(tmp_path: Path) -> None:
    bundles = [exported(family, tmp_path / family) for family in ("marian", "bart", "t5", "t5wide")]
    cases = [case for bundle in bundles for case in calls_of(bundle).cases]
    run_tests("calls", {"cases": cases, "tolerance": 1e-5}, tmp_path)
