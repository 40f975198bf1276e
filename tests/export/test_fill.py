"""Blanks of a text are filled like transformers' pipeline does."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.modeling.tiny_encoders import ROBERTA, EncoderCase
from tests.tiny.encoders import BERT, DISTILBERT
from tests.tiny.tokenizers import of_texts
from transformers import pipeline

import ortolan
from ortolan.cli import cli
from ortolan.runtime import Encoder
from ortolan.runtime.errors import BundleKindError, InputError, TokenizerError

CASES = {
    "bert": (EncoderCase("BertForMaskedLM", BERT), "[MASK]"),
    "roberta": (EncoderCase("RobertaForMaskedLM", ROBERTA), "<mask>"),
    "distilbert": (EncoderCase("DistilBertForMaskedLM", DISTILBERT), "[MASK]"),
}


def write_tokenizer(folder: Path, mask: str) -> None:
    """Words `w5` to `w96`, and special tokens of which one is a blank."""
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", mask]
    of_texts(special, 97).save(str(folder / "tokenizer.json"))
    names = {"mask_token": mask, "pad_token": "[PAD]", "unk_token": "[UNK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        case, mask = CASES[name]
        folder = tmp_path_factory.mktemp(name)
        case.write(folder)
        write_tokenizer(folder, mask)
        ortolan.export(folder, folder / "bundle")
        return folder

    return make


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in [*CASES][1:])]
)
@pytest.mark.parametrize("text", ["w7 {} w9 w11", "{} w20 w30", "w8 {} {} w12 w40 {}"])
def test_candidates_are_those_of_transformers(
    name: str, text: str, checkpoint: Callable[[str], Path]
) -> None:
    text = text.replace("{}", CASES[name][1])
    reference: Any = pipeline("fill-mask", model=str(checkpoint(name)), device="cpu")
    expected = reference(text, top_k=5)
    expected = expected if isinstance(expected[0], list) else [expected]
    found = ortolan.load(checkpoint(name) / "bundle", Encoder).fill(text)
    assert len(found.blanks) == len(expected)
    for blank, rows in zip(found.blanks, expected, strict=True):
        assert [own.token for own in blank] == [row["token"] for row in rows]
        assert [own.text for own in blank] == [row["token_str"] for row in rows]
        assert [own.score for own in blank] == pytest.approx([row["score"] for row in rows], 1e-4)
    best = iter([blank[0].text for blank in found.blanks])
    words = [next(best) if word == CASES[name][1] else word for word in text.split()]
    assert found.text.split() == [word for word in words if word.startswith("w")]


def test_the_command_prints_candidates(checkpoint: Callable[[str], Path]) -> None:
    bundle = str(checkpoint("bert") / "bundle")
    run = CliRunner().invoke
    lines = run(cli, ["fill", bundle, "w7 [MASK] w9", "--top", "3"]).stdout.splitlines()
    assert len(lines) == 3
    printed = json.loads(run(cli, ["fill", bundle, "w7 [MASK] w9", "--json"]).stdout)
    assert [row["text"] for row in printed["blanks"][0]][:3] == [line.split()[-1] for line in lines]


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("w7 w8", 5, r"no blank\. Write \[MASK\]"),
        ("w7 [MASK]", 0, "top must be a whole number of at least 1"),
        ([7, 4], 5, "needs a text"),
    ],
)
def test_what_cannot_be_filled_is_rejected(
    text: Any, top: int, message: str, checkpoint: Callable[[str], Path]
) -> None:
    model = ortolan.load(checkpoint("bert") / "bundle", Encoder)
    with pytest.raises(InputError, match=message):
        model.fill(text, top=top)


def test_other_models_fill_nothing(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    EncoderCase("BertForSequenceClassification", BERT).write(tmp_path / "labels")
    write_tokenizer(tmp_path / "labels", "[MASK]")
    ortolan.export(tmp_path / "labels", tmp_path / "bundle")
    with pytest.raises(BundleKindError, match="fill: expected an encoder with a language model"):
        ortolan.load(tmp_path / "bundle", Encoder).fill("w7 [MASK]")
    source = checkpoint("bert")
    write_tokenizer(tmp_path, "[BLANK]")
    options = ortolan.ExportOptions(tokenizer=tmp_path / "tokenizer.json")
    ortolan.export(source, tmp_path / "other", options=options)
    with pytest.raises(TokenizerError, match="one of the tokens"):
        ortolan.load(tmp_path / "other", Encoder).fill("w7 [BLANK]")
