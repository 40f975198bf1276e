"""The benchmark of windowed states, on a tiny model."""

import time
from pathlib import Path

import pytest
import torch

import ortolan
import windows
from ortolan.export.options import ExportOptions
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.models.transformer import build
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine import windows as engine_windows
from ortolan.runtime.engine.engine import Engine

TOKENS = 100

CONFIG = {
    "model_type": "mistral",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 2 * TOKENS,
    "sliding_window": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.slow
def test_windows_hold_less_and_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"BACK": 24, "PART": 8, "_BLOCK": 8, "_WIDEST": 8}.items():
        monkeypatch.setattr(engine_windows, name, value)
    module = build(config_from_hf(CONFIG)).eval()
    with torch.no_grad():
        ortolan.export(module, tmp_path / "bundle", options=ExportOptions(proof="quick"))
    engine = Engine(open_bundle(tmp_path / "bundle"))
    windows.measure(engine, list(range(3, 53)) * 2, rounds=1, clock=time.perf_counter)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    ratios = {row[1].strip(): row[-2].strip() for row in rows if len(row) == 6}
    (last,) = rows[-1]
    difference = float(last.rpartition(" ")[2])
    assert {"states, MB", "prompt, s", "step, ms"} <= ratios.keys()
    assert float(ratios["states, MB"]) < 0.5
    assert difference < 1e-5
