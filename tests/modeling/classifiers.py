"""Comparison of text classifiers with transformers."""

from pathlib import Path

import torch
from tests.modeling.tiny_models import assert_same_logits
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.training.tasks.text_classification import encode_texts
from ortolan.modeling.training.tokenizer import padded


def assert_like_transformers(folder: Path, texts: list[str], *, window: int) -> None:
    """Compares the logits with those of transformers for the checkpoint in `folder`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = encode_texts(tokenizer, texts, window)
    ids, lengths = padded(rows, 0)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    module = load(folder, EncoderModel)
    reference = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(ids, attention_mask=mask).logits
        assert_same_logits(module(ids, lengths), logits)
    assert isinstance(module.config.head, ClassifierHead)
    assert tuple(reference.config.id2label.values()) == module.config.head.labels
