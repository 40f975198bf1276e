"""What an export makes of the findings of its witness."""

from pathlib import Path
from typing import Any, get_args

import pytest
from tests.modeling.tiny_models import reference_model
from tests.tiny.decoders import LLAMA

import ortolan
from ortolan.export import pipeline
from ortolan.export.errors import WitnessError
from ortolan.export.options import WitnessTopic
from ortolan.export.witness import ask as asking
from ortolan.export.witness.brief import Finding
from ortolan.export.witness.topics import TOPICS
from ortolan.runtime.bundle.witness import MAX_TOPICS, Agreement, Witness
from ortolan.runtime.inspect.card import model_card
from ortolan.runtime.inspect.description import describe

BY = "transformers 9.9"
SAME = Finding(topic="logits", by=BY, questions=4, agreed=4, largest=3e-7)
OTHER = Finding(topic="texts", by=BY, questions=60, agreed=59, first="'a': ids[0]: x, y")
EQUAL = Finding(topic="transcripts", by=BY, questions=3, agreed=3, largest=0.0)
UNASKED = Finding(topic="rest", by=BY, unasked="stopped after 20 s: chats not asked")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def find(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """Let exports ask, and the subprocess find something."""
    loaded = Finding(topic="", by=BY)
    monkeypatch.setattr(pipeline, "ask", asking.ask)
    monkeypatch.setattr(asking, "run", lambda *_: iter([loaded, *findings]))


def test_agreement_is_in_the_manifest_and_shown(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, SAME, EQUAL, UNASKED)
    bundle = ortolan.export(checkpoint, tmp_path / "out")
    expected = (
        Agreement(topic="logits", questions=4, agreed=4, largest=3e-7),
        Agreement(topic="transcripts", questions=3, agreed=3, largest=0.0),
        Agreement(topic="rest", unasked="stopped after 20 s: chats not asked"),
    )
    assert bundle.manifest.witness == Witness(by=BY, topics=expected)
    line = (
        f"{BY} agrees: logits within 3e-07, 3 of 3 transcripts; stopped after 20 s: chats not asked"
    )
    assert describe(bundle).witness == bundle.manifest.witness
    assert bundle.manifest.witness.summary == line
    assert f"witness: {line}\n" in model_card([bundle])


def test_every_topic_is_a_choice_of_the_option() -> None:
    assert {topic.name for topic in TOPICS} == set(get_args(WitnessTopic))
    assert len(TOPICS) < MAX_TOPICS  # what was not asked takes one more


@pytest.mark.parametrize("findings", [(SAME,), ()])
def test_a_long_reason_is_cut(
    findings: tuple[Finding, ...],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find(monkeypatch, *findings, Finding(topic="texts", by=BY, unasked="why " * 200))
    witness = ortolan.export(checkpoint, tmp_path / "out").manifest.witness
    assert witness is not None
    assert "why why" in witness.summary


def test_a_difference_rejects_the_bundle(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, SAME, OTHER)
    with pytest.raises(WitnessError, match=r"texts, 'a': ids\[0\].*--accept-difference 'texts'"):
        ortolan.export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_accepted_difference_is_recorded(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, SAME, OTHER)
    options = ortolan.ExportOptions(accept_difference=("texts",))
    witness = ortolan.export(checkpoint, tmp_path / "out", options=options).manifest.witness
    assert witness is not None
    assert witness.accepted == ("texts",)
    assert witness.summary.startswith(f"{BY} differs in texts: ")
    assert "59 of 60 texts" in witness.summary


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("checkpoint", {"witness": False}, "it was turned off"),
        ("live", {}, "the source is a live model, which the certificate compares with"),
    ],
)
def test_who_was_not_asked_is_recorded(
    source: str,
    options: dict[str, Any],
    reason: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find(monkeypatch, OTHER)
    made = ortolan.export(
        checkpoint if source == "checkpoint" else reference_model(LLAMA),
        tmp_path / "out",
        options=ortolan.ExportOptions(**options),
    )
    witness = made.manifest.witness
    assert witness is not None
    assert witness.summary == f"nobody else was asked: {reason}"
