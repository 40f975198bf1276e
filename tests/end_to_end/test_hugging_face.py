"""From a checkpoint of transformers to tokens, compared with transformers.

`pytest -s` shows the figures of each family.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import ortolan

VOCABULARY = 512
PROMPT = 96
STEPS = 64
NEW_TOKENS = 256
NEAR_TIE = 1e-3

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

CONFIGS = {
    "llama": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=96,
        n_layer=2,
        n_head=6,
        n_positions=512,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=48),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=48, max_window_layers=1),
}


def random_model(family: str) -> PreTrainedModel:
    """A model whose weights are large enough for distinct logits."""
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM  # untyped
    model: PreTrainedModel = auto.from_config(CONFIGS[family]).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.12)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def reference_logits(model: Any, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def same_but_near_ties(
    model: Any, prompt: NDArray[np.int64], ours: tuple[int, ...]
) -> tuple[int, int]:
    """Count tokens that equal transformers' greedy ones, and near ties.

    After a near tie the two completions differ, so later tokens are compared with the logits of
    transformers for our tokens.
    """
    with torch.inference_mode():
        output = model.generate(
            torch.from_numpy(prompt)[None], max_new_tokens=len(ours), do_sample=False
        )
    theirs = output[0, len(prompt) :].tolist()
    if list(ours) == theirs:
        return len(ours), 0
    logits = reference_logits(model, np.concatenate([prompt, ours]).astype(np.int64))
    ties = equal = 0
    for index, token in enumerate(ours):
        row = logits[len(prompt) - 1 + index]
        gap = float(row.max() - row[token])
        assert gap <= NEAR_TIE, f"token {index}: {gap} below the best"
        equal += gap == 0
        ties += gap > 0
    return equal, ties


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gpt2",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "qwen2")),
    ],
)
def test_bundle_equals_hugging_face(family: str, tmp_path: Path) -> None:
    reference = random_model(family)
    reference.save_pretrained(tmp_path / "checkpoint")
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", threads=1)
    ids = np.random.default_rng(3).integers(0, VOCABULARY, PROMPT + STEPS)

    expected = reference_logits(reference, ids)
    bound = 1e-4 * max(1.0, float(np.abs(expected).max()))
    prefill = float(np.abs(model.logits(ids) - expected).max())
    session = model.session()
    rows = [session.append(ids[:PROMPT])]
    rows += [session.append(ids[i : i + 1]).copy() for i in range(PROMPT, PROMPT + STEPS)]
    cached = max(
        float(np.abs(row - expected[PROMPT - 1 + i]).max()) for i, row in enumerate(rows[1:], 1)
    )
    assert prefill <= bound
    assert cached <= bound

    prompt = ids[:PROMPT]
    done = model.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    equal, ties = same_but_near_ties(reference, prompt, done.tokens)
    print(
        f"{family}: max |Δlogit| prefill {prefill:.1e}, {STEPS} cached steps {cached:.1e} "
        f"(bound {bound:.1e}); greedy {equal} of {NEW_TOKENS} equal, {ties} near ties"
    )
