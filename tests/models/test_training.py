"""The tasks of models/ learn, in seconds, and write checkpoints that load."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits
from tests.modeling.training.recipes import ANSWERING, IMAGE_CLASSIFICATION, MASKED, write_recipe
from tokenizers import Tokenizer
from transformers import AutoModelForImageClassification, AutoModelForMaskedLM

from ortolan.modeling import EncoderModel, RecurrentModel, load
from ortolan.modeling.training.trainer import train


def trained(folder: Path, recipe: str) -> tuple[Path, dict[str, Any]]:
    out = train(write_recipe(folder, recipe), folder / "out")
    return out, json.loads((out / "training.json").read_text())


def test_answering_learns_short_texts_first(tmp_path: Path) -> None:
    out, figures = trained(tmp_path, ANSWERING)
    assert figures["held_out_short_accuracy"] > 0.5
    assert figures["held_out_long_accuracy"] < figures["held_out_short_accuracy"]
    module, tokenizer = load(out, RecurrentModel), Tokenizer.from_file(str(out / "tokenizer.json"))
    ids = tokenizer.encode("b a |").ids
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(module(torch.tensor([ids]))[0, -1].argmax()))
    assert tokenizer.decode(ids[3:]) == "b a"


@pytest.mark.parametrize("recipe", [IMAGE_CLASSIFICATION, MASKED], ids=["images", "masked"])
def test_encoders_learn_and_equal_transformers(recipe: str, tmp_path: Path) -> None:
    out, figures = trained(tmp_path, recipe)
    module, reference = load(out, EncoderModel), None
    if recipe == MASKED:
        # An untrained model assigns the same probability to each of 400 tokens.
        assert figures["held_out_masked_loss"] < 0.65 * math.log(400)
        reference = AutoModelForMaskedLM.from_pretrained(out, dtype=torch.float32)
        inputs = torch.arange(10, 40)[None]
    else:
        assert figures["held_out_accuracy"] > 0.9
        reference = AutoModelForImageClassification.from_pretrained(out, dtype=torch.float32)
        inputs = torch.rand(5, 3, 8, 8) * 2 - 1
    with torch.inference_mode():
        assert_same_logits(module(inputs), reference(inputs).logits)
