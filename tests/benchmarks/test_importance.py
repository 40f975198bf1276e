from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workers import importance


def test_importance_is_the_mean_square_of_the_inputs_of_each_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance, "WINDOW", 8)
    letters = "abcdefghijk"
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(letters),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=4,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(tmp_path)
    letter_model = models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[])
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=Tokenizer(letter_model)).save_pretrained(tmp_path)
    text = tmp_path / "text"
    text.write_text("abcdefgh")  # all windows are the same
    found = importance.importance(tmp_path, [text])
    assert len(found) == 8
    with torch.inference_mode():
        states = model.model(torch.arange(8)[None], output_hidden_states=True)
        first = model.model.layers[0].input_layernorm(states.hidden_states[0])
    for name, inputs in (("blk.0.attn_k", first), ("token_embd", states.last_hidden_state)):
        expected = inputs[0].square().mean(0)
        np.testing.assert_allclose(found[f"{name}.weight"], expected, rtol=1e-4)
