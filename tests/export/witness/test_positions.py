"""Windows beyond all probes, and rotary frequencies that depend on the length of a text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import findings, save_tiny
from tests.export.witness.test_ask import by_topic
from tests.modeling.families.test_rope_lengths import LONGEST, values_of
from tests.modeling.tiny_encoders import ENCODERS
from tests.modeling.tiny_models import reference_model
from tests.tiny.decoders import LLAMA
from tests.tiny.transformers_types import tiny_config

import ortolan
from ortolan.export.errors import WitnessError
from ortolan.export.options import DEFAULTS
from ortolan.export.source import open_exportable
from ortolan.export.witness import ask as asking
from ortolan.export.witness import child
from ortolan.export.witness.publisher import Publisher
from ortolan.runtime.bundle.witness import Witness

pytestmark = pytest.mark.slow

WINDOWED = LLAMA | {
    "model_type": "qwen2",
    "use_sliding_window": True,
    "sliding_window": 300,
    "max_window_layers": 1,
    "max_position_embeddings": 800,
}

Ask = Callable[..., Witness]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Export a config, change it as if it had been misread, and ask in this process."""
    monkeypatch.setattr(child, "_limit", lambda _: None)
    monkeypatch.setattr(asking, "run", lambda brief, *_: child.answers(brief))
    source, bundle = tmp_path / "source", tmp_path / "bundle"

    def asked(values: dict[str, Any], max_context: int | None = None, **changes: Any) -> Witness:
        reference_model(values).save_pretrained(source)
        ortolan.export(source, bundle, max_context=max_context)
        model = open_exportable(source, DEFAULTS, max_context=max_context)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | changes))
        return asking.ask(bundle, source, model, DEFAULTS, max_context)

    return asked


def test_windows_are_compared_without_their_numbers(ask: Ask) -> None:
    special = by_topic(ask(WINDOWED))["special tokens"]
    assert special.agreed == special.questions > 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 301}, r"\[1\]: the bundle gives 300, the publisher's code 301"),
        ({"layer_types": ["full_attention"] * 2}, r"\[1\]: the bundle gives 300, .* None"),
    ],
    ids=["another size", "no window"],
)
def test_misread_windows_are_found(ask: Ask, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WitnessError, match=f"special tokens, windows of the layers: {words}"):
        ask(WINDOWED, **changes)


def test_frequencies_of_long_texts_are_compared(ask: Ask) -> None:
    logits = by_topic(ask(values_of("longrope"), LONGEST))["logits"]
    assert logits.agreed == logits.questions > 0


def test_misread_frequencies_of_long_texts_are_found(ask: Ask) -> None:
    values = values_of("longrope")
    rotary = dict(values["rope_parameters"])
    rotary["long_factor"] = [1.05 * own for own in rotary["long_factor"]]
    with pytest.raises(WitnessError, match="differently: logits, 2 tokens"):
        ask(values, LONGEST, rope_parameters=rotary)


def test_frequencies_that_grow_with_the_text_are_not_asked_about(ask: Ask) -> None:
    topics = by_topic(ask(values_of("dynamic"), LONGEST))
    reason = "its rotary frequencies are those of its longest text"
    assert topics["logits"].unasked == topics["completions"].unasked == reason


def test_a_decoder_that_counts_positions_from_the_padding_on_agrees(tmp_path: Path) -> None:
    values = tiny_config("camembert").to_dict() | {"model_type": "camembert"}
    save_tiny(values | {"architectures": [None]}, tmp_path / "source", spread=0.2)
    options = ortolan.ExportOptions(via="transformers")
    ortolan.export(tmp_path / "source", tmp_path / "bundle", options=options, max_context=96)
    found = findings(tmp_path / "source", tmp_path / "bundle", max_context=96)
    for name in ("logits", "completions"):
        assert found[name].agreed == found[name].questions > 0, found[name]


def test_texts_are_cut_where_attention_becomes_sparse(tmp_path: Path) -> None:
    ENCODERS["big-bird-long"].write(tmp_path)
    assert Publisher(tmp_path, kind="encoder")._limit(None) == 44
