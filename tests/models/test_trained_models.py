"""The stored checkpoints are as accurate as their figures say, and equal transformers.

tests/end_to_end/test_trained_models.py measures their bundles.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.classifiers import assert_like_transformers
from tests.modeling.tiny_models import assert_same_logits
from tokenizers import Tokenizer
from transformers import AutoModelForImageClassification

from copying.answering import AnsweringTask, right_share
from digits.data import LABELS, read
from digits.image_classification import normalized
from numerals.data import read as read_numerals
from numerals.quality import bleu
from ortolan.modeling import EncoderDecoderModel, EncoderModel, TransformerModel, load
from ortolan.modeling.config import ClassifierHead, HeadLayer
from ortolan.modeling.training.decoding import greedy
from ortolan.modeling.training.recipe import read_recipe
from snippets.snippets import PACKAGES

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("kind", ["attentive-rnn", "ntm", "transformer"])
@pytest.mark.parametrize("task", ["copying", "sorting"])
def test_answers_are_as_often_right_as_the_figures_say(task: str, kind: str) -> None:
    folder = MODELS / task / kind
    recipe = read_recipe(folder / "recipe.toml")
    recipe.data.update({"texts": 300, "held_out": 30})
    answering, module = AnsweringTask(recipe, folder), load(folder, TransformerModel)
    figures = json.loads((folder / "training.json").read_text())
    assert module.config == answering.module.config
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab() == answering.tokenizer.get_vocab()
    for name, texts in answering.held_out.items():
        share = figures[f"held_out_{name}_accuracy"]
        assert right_share(module, texts) == pytest.approx(share, abs=0.15)


def test_digits_are_named_as_often_as_the_card_says_and_as_by_transformers() -> None:
    folder, held_out = MODELS / "digits", read().held_out
    module, images = load(folder, EncoderModel), normalized(held_out.pixels)
    reference = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = module(images)
        assert_same_logits(logits[:64], reference(images[:64]).logits)
    accuracy = float((logits.argmax(-1).numpy() == held_out.labels).mean())
    figures = json.loads((folder / "training.json").read_text())
    assert accuracy == pytest.approx(figures["held_out_accuracy"], abs=0.5 / len(images))
    assert f"{accuracy:.4f}" in (folder / "README.md").read_text()
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == LABELS


def test_transformers_prepares_digits_as_training_did() -> None:
    # The one that needs no torchvision.
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    pixels = read().held_out.pixels[:4]
    processor: Any = ViTImageProcessorPil.from_pretrained(MODELS / "digits")
    prepared = processor([*pixels], input_data_format="channels_last", return_tensors="pt")
    torch.testing.assert_close(prepared["pixel_values"], normalized(pixels))


def test_sentences_with_held_out_numbers_are_translated() -> None:
    folder = MODELS / "numerals"
    module = load(folder, EncoderDecoderModel)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sources, targets = zip(*read_numerals(pairs=1, held_out=40).held_out["numbers"], strict=True)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(sources)]
    translated = greedy(module, ids, suppressed=[tokenizer.get_vocab_size() - 1], max_tokens=100)
    assert bleu(tokenizer.decode_batch(translated), targets) > 90


def test_snippets_are_classified_as_by_transformers_and_the_card_shows_the_figures() -> None:
    folder = MODELS / "snippets"
    texts = ["import os\nprint(os.getcwd())\n", "loop = get_event_loop()\nawait future\n" * 4]
    assert_like_transformers(folder, texts, window=160)
    figures, card = json.loads((folder / "training.json").read_text()), folder / "README.md"
    assert f"{figures['held_out_accuracy']:.3f}" in card.read_text()
    assert load(folder, EncoderModel).config.head == ClassifierHead(
        labels=PACKAGES, pooling="first", layer=HeadLayer(activation="tanh")
    )
