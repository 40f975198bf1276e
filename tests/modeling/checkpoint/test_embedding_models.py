"""Embedding models of sentence-transformers that are based on language models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_encoders import (
    EMBEDDING_GEMMA,
    ENCODERS,
    EncoderCase,
    ragged,
    reference_output,
)
from tests.modeling.tiny_models import LLAMA, assert_same_logits, reference_model
from tests.refusals import refusal
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel

from ortolan.modeling import DecoderModel, EncoderConfig, EncoderModel, ModelConfig, load
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import DecoderConfig, EmbeddingHead, Projection

TEXTS = ragged(9, 1, 16, 4)

QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 8, "max_position_embeddings": 40}

LAST = EmbeddingHead(pooling=("last",))


def written(folder: Path, values: dict[str, Any], head: EmbeddingHead = LAST) -> Path:
    reference_model(values).save_pretrained(folder)
    write_sentence_head(folder, head, 32)
    return folder


def embeddings(folder: Path) -> Tensor:
    with torch.inference_mode():
        vectors: Tensor = load(folder, EncoderModel)(TEXTS.ids, TEXTS.lengths)
    return vectors


@pytest.mark.parametrize("tied", [True, False])
def test_the_last_state_of_a_language_model_is_its_embedding(tied: bool, tmp_path: Path) -> None:
    # Like Qwen3-Embedding, except that its padding is on the left.
    written(tmp_path, QWEN3 | {"tie_word_embeddings": tied})
    reference = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    rows = []
    for row, length in enumerate(TEXTS.lengths.tolist()):
        states = reference_output(reference, input_ids=TEXTS.ids[row : row + 1, :length])
        rows.append(functional.normalize(states[0, -1], dim=0))
    assert_same_logits(embeddings(tmp_path), torch.stack(rows))
    config = read_config(tmp_path, EncoderConfig)
    assert all(block.attention.causal for block in config.blocks)


def test_names_without_the_prefix_of_the_base_model_are_understood(tmp_path: Path) -> None:
    # Like Qwen3-Embedding.
    written(tmp_path, QWEN3 | {"tie_word_embeddings": True})
    expected = embeddings(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(embeddings(tmp_path), expected)


def test_a_caller_can_ask_for_the_language_model(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    written(tmp_path, QWEN3)
    assert isinstance(read_config(tmp_path, ModelConfig), EncoderConfig)
    assert isinstance(load(tmp_path), DecoderModel)
    (tmp_path / "modules.json").unlink()
    assert isinstance(read_config(tmp_path, ModelConfig), DecoderConfig)
    assert refusal(lambda: read_config(tmp_path, EncoderConfig)) == snapshot


def test_a_gemma_with_two_sided_attention_embeds_texts(tmp_path: Path) -> None:
    case = EncoderCase("Gemma3TextModel", EMBEDDING_GEMMA)
    reference = case.write(tmp_path)
    write_sentence_head(tmp_path, EmbeddingHead(pooling=("mean",)), 32)
    states = reference_output(reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask)
    mean = (states * TEXTS.mask[..., None]).sum(1) / TEXTS.mask.sum(1, keepdim=True)
    assert_same_logits(embeddings(tmp_path), functional.normalize(mean, dim=1))
    blocks = read_config(tmp_path, EncoderConfig).blocks
    windows = [block.attention.sliding_window for block in blocks]
    assert windows == [4, None, 4]


def test_padding_beyond_every_window_is_finite(tmp_path: Path) -> None:
    EncoderCase("Gemma3TextModel", EMBEDDING_GEMMA).write(tmp_path)
    module = load(tmp_path, EncoderModel)
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert module.to(dtype)(TEXTS.ids, TEXTS.lengths).isfinite().all()


@pytest.mark.parametrize("name", ["mpnet", "roberta"])
def test_an_embedding_may_keep_the_class_of_a_masked_language_model(
    name: str, tmp_path: Path
) -> None:
    # Like all-mpnet-base-v2 and all-distilroberta-v1.
    case = ENCODERS[f"{name}-masked"]
    reference = case.write(tmp_path)
    write_sentence_head(tmp_path, EmbeddingHead(pooling=("mean",)), 32)
    with torch.inference_mode():
        states = reference.base_model(TEXTS.ids, TEXTS.mask).last_hidden_state
    mean = (states * TEXTS.mask[..., None]).sum(1) / TEXTS.mask.sum(1, keepdim=True)
    assert_same_logits(embeddings(tmp_path), functional.normalize(mean, dim=1))


def test_a_projection_may_be_a_pickle(tmp_path: Path) -> None:
    # As written by version 2 of sentence-transformers.
    ENCODERS["bert"].write(tmp_path)
    head = EmbeddingHead(pooling=("first",), projections=(Projection(width=20),))
    (dense,) = write_sentence_head(tmp_path, head, 32)
    weights = {"linear.weight": torch.randn(20, 32), "linear.bias": torch.randn(20)}
    torch.save(weights, dense / "pytorch_model.bin")
    module = load(tmp_path, EncoderModel)
    with torch.inference_mode():
        first = module.states(TEXTS.ids, TEXTS.lengths)[:, 0]
        hidden = torch.tanh(first @ weights["linear.weight"].T + weights["linear.bias"])
    assert_same_logits(embeddings(tmp_path), functional.normalize(hidden, dim=1))
