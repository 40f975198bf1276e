"""First layers of encoders and encoder-decoders that do not fit into memory."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.cases import contrast
from tests.cases.comparison import save_tiny
from tests.cases.image_encoders import SQUARE, processor
from tests.export.witness import text_encoders
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.tiny import CONFIGS

import ortolan
from ortolan.export.errors import WitnessError
from ortolan.export.options import DEFAULTS
from ortolan.export.source import open_exportable
from ortolan.export.witness import ask as asking
from ortolan.export.witness import child, depth, publisher
from ortolan.export.witness.shallow import least_layers
from ortolan.runtime.bundle.witness import Witness

Write = Callable[[Path], object]


def tiny(name: str, **layers: int) -> Write:
    """Writes a tiny checkpoint of a type."""
    return lambda folder: save_tiny(CONFIGS[name] | layers, folder, spread=0.2)


def labelled(folder: Path) -> None:
    """A classifier of images with its processor."""
    tiny("vit", num_hidden_layers=5)(folder)
    processor("ViT", {"size": SQUARE}).save_pretrained(str(folder))


def sentences(write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of sentence-transformers."""
    monkeypatch.setitem(text_encoders.SIZES, "num_hidden_layers", 5)
    write(folder)


WRITERS: dict[str, tuple[Write, int]] = {
    "bert": (tiny("bert", num_hidden_layers=5), 1),
    "t5": (tiny("t5", num_layers=5, num_decoder_layers=4), 2),  # the first has the biases
    "bart": (tiny("bart", encoder_layers=4, decoder_layers=5), 1),
    "distilbert": (tiny("distilbert", n_layers=5), 1),
    "vit": (labelled, 1),
    "wav2vec2": (partial(write_wav2vec2, num_hidden_layers=8), 1),
    "embedder": (text_encoders.embedder, 1),
    "reranker": (text_encoders.reranker, 1),
}
"""Checkpoints of several layers, and the fewest that stand for all."""

SENTENCES = ("embedder", "reranker")

NUMBERS = ("outputs", "logits", "images", "sounds")
"""Topics that compare the numbers of a model."""


def ask(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Witness:
    """Ask in this process, with memory for most of the model, about a config with changes."""
    source, write = folder / "in", WRITERS[name][0]
    source.mkdir()
    if name in SENTENCES:
        sentences(write, source, monkeypatch)
    else:
        write(source)
    config = json.loads((source / "config.json").read_text())
    kind: Any = getattr(transformers, config["architectures"][0])
    whole = depth.float32_bytes(kind.from_pretrained(source))
    ortolan.export(source, folder / "out")
    model = open_exportable(source, DEFAULTS)
    (source / "config.json").write_text(json.dumps(config | changes))
    monkeypatch.setattr(child, "_limit", lambda _: None)
    monkeypatch.setattr(asking, "run", lambda brief, *_: child.answers(brief))
    monkeypatch.setattr(publisher, "LIBRARIES", 0)
    monkeypatch.setattr(asking, "MEMORY_SHARE", 0.85)
    monkeypatch.setattr(asking, "available_memory", lambda: whole)
    return asking.ask(folder / "out", source, model, DEFAULTS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "bert" else pytest.mark.slow) for name in WRITERS],
)
def test_first_layers_are_asked_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = ask(name, tmp_path, monkeypatch)
    (numbers,) = (own for own in witness.topics if own.topic in NUMBERS)
    assert witness.layers == WRITERS[name][1]
    assert numbers.agreed == numbers.questions > 0
    assert 0 < (numbers.largest or 0) < 2e-5
    assert witness.accepted == ()


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit", "embedder"))]
)
def test_first_layers_of_an_encoder_that_differ_reject_the_bundle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "images" if name == "vit" else "outputs"
    with pytest.raises(WitnessError, match=f"differently: {topic}, "):
        ask(name, tmp_path, monkeypatch, layer_norm_eps=0.1)


def test_encoders_of_images_next_to_one_of_texts_are_asked_about_as_a_whole(tmp_path: Path) -> None:
    contrast.write(tmp_path, "clip")
    assert least_layers(open_exportable(tmp_path, DEFAULTS)) is None
