"""First layers of encoders and encoder-decoders that do not fit into memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import save_tiny
from tests.tiny import CONFIGS

import ortolan
from ortolan.export.errors import WitnessError
from ortolan.export.options import DEFAULTS
from ortolan.export.source import open_exportable
from ortolan.export.witness import ask as asking
from ortolan.export.witness import child, depth, publisher
from ortolan.export.witness.shallow import least_layers
from ortolan.runtime.bundle.witness import Witness

LAYERS: dict[str, tuple[dict[str, int], int]] = {
    "bert": ({"num_hidden_layers": 5}, 1),
    "t5": ({"num_layers": 5, "num_decoder_layers": 4}, 2),  # the first has the biases
    "bart": ({"encoder_layers": 4, "decoder_layers": 5}, 1),
}
"""Numbers of layers, and the fewest that stand for all."""


def ask(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Witness:
    """Ask in this process, with memory for most of the model, about a config with changes."""
    values, source = CONFIGS[name] | LAYERS[name][0], folder / "in"
    whole = depth.float32_bytes(save_tiny(values, source, spread=0.2))
    ortolan.export(source, folder / "out")
    model = open_exportable(source, DEFAULTS)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changes))
    monkeypatch.setattr(child, "_limit", lambda _: None)
    monkeypatch.setattr(asking, "run", lambda brief, _: child.answers(brief))
    monkeypatch.setattr(publisher, "LIBRARIES", 0)
    monkeypatch.setattr(asking, "MEMORY_SHARE", 0.85)
    monkeypatch.setattr(asking, "available_memory", lambda: whole)
    return asking.ask(folder / "out", source, model, DEFAULTS)


@pytest.mark.parametrize("name", ["bert", "t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_first_layers_of_both_sides_are_asked_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = ask(name, tmp_path, monkeypatch)
    numbers = next(own for own in witness.topics if own.topic in ("outputs", "logits"))
    assert witness.layers == LAYERS[name][1]
    assert numbers.agreed == numbers.questions > 0
    assert 0 < (numbers.largest or 0) < 1e-5


def test_first_layers_of_an_encoder_that_differ_reject_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WitnessError, match="differently: outputs, "):
        ask("bert", tmp_path, monkeypatch, layer_norm_eps=0.1)


def test_encoders_of_images_are_asked_about_as_a_whole(tmp_path: Path) -> None:
    save_tiny(CONFIGS["vit"], tmp_path, spread=0.2)
    assert least_layers(open_exportable(tmp_path, DEFAULTS)) is None
