"""PEFT answers about an adapter that a bundle uses at run time."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.modeling.tiny_models import reference_model
from tests.tiny.decoders import LLAMA

import ortolan
from ortolan.export import adapter as exporting
from ortolan.export.adapter import export_adapter
from ortolan.export.errors import WitnessError
from ortolan.export.witness import ask as asking
from ortolan.export.witness import child
from ortolan.modeling.checkpoint import adapter as adapter_reader
from ortolan.runtime.bundle.adapter_folder import open_adapter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, an adapter that PEFT saved, and a bundle; adapters are asked about here."""
    base = reference_model(LLAMA)
    base.save_pretrained(tmp_path / "base")
    trained: Any = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.normal_(0, 0.2) if parameter.requires_grad else None
    trained.save_pretrained(str(tmp_path / "adapter"))
    ortolan.export(tmp_path / "base", tmp_path / "bundle")
    monkeypatch.setattr(child, "_limit", lambda _: None)
    monkeypatch.setattr(asking, "run", lambda brief, *_: child.answers(brief))
    monkeypatch.setattr(exporting, "ask", asking.ask)
    return tmp_path


def convert(folder: Path, **options: Any) -> Any:
    export_adapter(
        folder / "adapter",
        folder / "out",
        bundle=folder / "bundle",
        checkpoint=folder / "base",
        **options,
    )
    return open_adapter(folder / "out").manifest.witness


@pytest.mark.filterwarnings("ignore")  # PEFT uses deprecated names
def test_an_adapter_records_that_peft_agrees(folder: Path) -> None:
    witness = convert(folder)
    (logits,) = witness.topics
    assert (logits.topic, logits.agreed) == ("logits", logits.questions)
    assert 0 < logits.largest < 1e-5
    assert json.loads((folder / "out" / "adapter.json").read_text())["witness"]["topics"]


@pytest.mark.filterwarnings("ignore")  # PEFT uses deprecated names
def test_an_adapter_that_is_read_wrongly_is_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = adapter_reader._scale
    monkeypatch.setattr(adapter_reader, "_scale", lambda *values: 1.05 * read(*values))
    with pytest.raises(WitnessError, match=r"logits, .* is right, add --no-witness\."):
        convert(folder)
    assert not (folder / "out").exists()
    assert convert(folder, witness=False).unasked == "it was turned off"
