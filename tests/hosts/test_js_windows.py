"""Decoders whose states have windows, in JavaScript against Python: equal tokens as rows move."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.export.test_windows import CONTEXT, IDS, KINDS, SHAPE, WINDOW
from tests.hosts.js_cases import Calls
from tests.hosts.js_runs import run_tests

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.runtime.engine import windows

pytestmark = pytest.mark.slow

SMALL: Mapping[str, int] = {"BACK": 4, "PART": 8, "_BLOCK": 8, "_WIDEST": 8}
"""Sizes with which a bundle of a short context gets windows."""

CHOSEN = ("every layer", "softcaps, alternating", "two rotations", "sinks and experts")


def exported(kind: str, folder: Path) -> Path:
    class_name, fields, _ = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, class_name)(**{**SHAPE, **fields})
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "original")
    bundle = folder / class_name
    options = ExportOptions(witness=False)
    ortolan.export(folder / "original", bundle, precision="fp32", options=options)
    return bundle


def calls_of(bundle: Path) -> Calls:
    calls = Calls(bundle, device="cpu")
    assert any(state.window == WINDOW for state in calls.manifest.states)
    for length, new in ((5, 40), (150, 40), (20, 260)):
        calls.add("generate", IDS[:length], max_new_tokens=new, ignore_eos=True)
    calls.add("generate", IDS[:20], max_new_tokens=CONTEXT)
    return calls


def test_windowed_decoders_equal_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(windows, name, value)
    bundles = [exported(kind, tmp_path / str(index)) for index, kind in enumerate(CHOSEN)]
    cases = [case for bundle in bundles for case in calls_of(bundle).cases]
    run_tests("calls", {"cases": cases, "tolerance": 1e-5}, tmp_path)
