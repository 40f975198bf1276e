"""models/numerals: BLEU, the baselines, the recipe, and the trained model."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from numerals.data import read
from numerals.quality import bleu, nearest_translations
from ortolan.modeling import EncoderDecoderModel, load
from ortolan.modeling.training.decoding import greedy
from ortolan.modeling.training.trainer import train

MODEL = Path(__file__).parents[2] / "models/numerals"

TINY = {
    '"data.py:read"': f'"{MODEL}/data.py:read"',
    "pairs = 300_000": "pairs = 200",
    "held_out = 1000": "held_out = 8",
    "d_model = 192": "d_model = 24",
    "encoder_ffn_dim = 512": "encoder_ffn_dim = 32",
    "decoder_ffn_dim = 512": "decoder_ffn_dim = 32",
    "encoder_layers = 3": "encoder_layers = 1",
    "decoder_layers = 2": "decoder_layers = 1",
    "steps = 6000": "steps = 6",
    "warmup_steps = 800": "warmup_steps = 2",
    "average_last = 500": "average_last = 2",
}


def test_bleu_of_the_references_is_100() -> None:
    texts = ["Elle a vingt et un ans aujourd'hui.", "Le train part à dix-sept heures trente."]
    assert bleu(texts, texts) == pytest.approx(100)
    assert bleu([texts[0], texts[0]], texts) < 60


def test_nearest_translation_is_that_of_the_most_similar_source() -> None:
    known = [("I have 12 apples.", "a"), ("Paul lives in Rome.", "b"), ("It is ten past two.", "c")]
    asked = ["I have 13 apples.", "It is ten past four.", "Anna lives in Rome."]
    assert nearest_translations(known, asked, at_once=2) == ["a", "c", "b"]


def test_the_baselines_are_measured_on_both_sets() -> None:
    figures = read(pairs=400, held_out=12).figures()
    assert set(figures) == {
        f"{way}_{name}_bleu" for way in ("copy", "nearest") for name in ("numbers", "templates")
    }
    copied, nearest = figures["copy_numbers_bleu"], figures["nearest_numbers_bleu"]
    assert isinstance(copied, float)
    assert isinstance(nearest, float)
    assert 0 <= copied < nearest < 100


def test_the_recipe_trains_a_tiny_model(tmp_path: Path) -> None:
    text = (MODEL / "recipe.toml").read_text()
    for old, new in TINY.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "recipe.toml").write_text(text)
    figures = json.loads((train(tmp_path / "recipe.toml") / "training.json").read_text())
    assert figures["train_pairs"] == 200
    assert figures["held_out_pairs"] == 16
    assert figures["measured"][-1][1] == figures["held_out_numbers_bleu"]
    assert "nearest_templates_bleu" in figures


def test_the_trained_model_translates_held_out_numbers() -> None:
    module = load(MODEL, EncoderDecoderModel)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    held_out = read(pairs=1, held_out=40).held_out["numbers"]
    sources = [encoding.ids for encoding in tokenizer.encode_batch([pair[0] for pair in held_out])]
    suppressed = [tokenizer.get_vocab_size() - 1]
    ids = greedy(module, sources, suppressed=suppressed, max_tokens=100)
    translated = tokenizer.decode_batch(ids)
    assert bleu(translated, [pair[1] for pair in held_out]) > 90
