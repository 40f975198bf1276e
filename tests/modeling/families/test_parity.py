"""Whole decoders against transformers: the same checkpoint, the same logits."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.modeling.mtp_checkpoints import save_with_head
from tests.modeling.steps import in_steps
from tests.modeling.tiny_models import (
    LLAMA,
    MISTRAL,
    QWEN2,
    STABLELM,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.refusals import refusal
from tests.tiny.classics import CLASSICS
from tests.tiny.decoders import GPT2
from tests.tiny.hybrids import HYBRIDS
from tests.tiny.mixtures import GLM4_MOE, MIXTURES
from tests.tiny.modern import DEEPSEEK_V3, MODERN
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from ortolan.modeling import DecoderModel, load
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.config import RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.layers.cache import StepLengths, empty_cache

CHUNKS = (9, 6, 1)
"""Sizes of the first chunks."""

LATER, STEPS = 20, 24
"""Size of the other chunks, and decode steps at the end."""

TEXT = sum(CHUNKS) + 2 * LATER + STEPS


@dataclass(frozen=True, kw_only=True)
class Case:
    """A config of transformers, and the length to compare.

    Attributes:
        attention: the implementation of transformers that is right.
    """

    values: dict[str, Any]
    length: int = TEXT
    max_context: int | None = None
    attention: str = "eager"


DECODERS = {
    name: values
    for name, values in (CLASSICS | MODERN | MIXTURES | HYBRIDS).items()
    if name in FAMILIES
}

OPTIONS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "decoder_options.json").read_text()
)
"""Changes of each family's tiny config: every option that it reads has another value in one."""


def stretched(name: str, **rope: object) -> dict[str, Any]:
    """A family whose wavelengths have a factor each."""
    factors = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
        **rope,
    }
    original = {"original_max_position_embeddings": 48}
    return DECODERS[name] | original | {"rope_parameters": factors}


LONG_PHI3 = stretched("phi3")

CASES = {
    # attention
    "llama-grouped": Case(values=LLAMA),
    "llama-multi-head": Case(values=LLAMA | {"num_key_value_heads": 4}),
    "llama-multi-query": Case(values=LLAMA | {"num_key_value_heads": 1}),
    "llama-head-dim": Case(values=LLAMA | {"head_dim": 24}),
    "llama-tied": Case(values=LLAMA | {"tie_word_embeddings": True}),
    "llama-attention-bias": Case(values=LLAMA | {"attention_bias": True}),
    "llama-mlp-bias": Case(values=LLAMA | {"mlp_bias": True}),
    "llama-eps": Case(values=LLAMA | {"rms_norm_eps": 0.5}),
    # activations
    **{
        f"llama-{name}": Case(values=LLAMA | {"hidden_act": name})
        for name in ("relu", "gelu", "gelu_new")
    },
    # families
    "gpt2": Case(values=GPT2),
    "gpt2-untied": Case(values=GPT2 | {"tie_word_embeddings": False}),
    "gpt2-inner": Case(values=GPT2 | {"n_inner": 56, "activation_function": "relu"}),
    "gpt2-unscaled": Case(values=GPT2 | {"scale_attn_weights": False}),
    "gpt2-by-layer": Case(values=GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2-short": Case(values=GPT2, length=40, max_context=40),
    "mistral": Case(values=MISTRAL),
    "mistral-window": Case(values=MISTRAL | {"sliding_window": 7}),
    "mistral-window-1": Case(values=MISTRAL | {"sliding_window": 1}),
    "qwen2": Case(values=QWEN2),
    "qwen2-window-unused": Case(values=QWEN2 | {"sliding_window": 7}),
    "qwen2-windowed": Case(
        values=QWEN2 | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    ),
    "qwen2-layer-types": Case(
        values=QWEN2
        | {
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        }
    ),
    **{name: Case(values=values) for name, values in DECODERS.items()},
    **{
        f"{name}-{option}": Case(values=DECODERS[name] | changes)
        for name, options in OPTIONS.items()
        for option, changes in options.items()
    },
    "phi3-long": Case(values=LONG_PHI3, max_context=96),
    "phi3-short": Case(values=LONG_PHI3, length=40, max_context=48),
    "phimoe-stretched": Case(
        values=stretched("phimoe", short_mscale=1.3, long_mscale=1.3), length=40
    ),
    "mamba2-bounded": Case(values=DECODERS["mamba2"] | {"time_step_limit": [0.3, 0.9]}),
    # The other implementation adds the biases twice.
    "falcon-alibi": Case(
        values=DECODERS["falcon"]
        | {"hidden_size": 64, "num_attention_heads": 4, "alibi": True}
        | {"bias": True, "multi_query": False},
        attention="sdpa",
    ),
    "stablelm-half": Case(values=STABLELM),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_transformers_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = reference_model(case.values, attention=case.attention)
    reference.save_pretrained(tmp_path)
    module = load(tmp_path, max_context=case.max_context)
    ids = random_text(case.length)
    expected = reference_logits(reference, ids)

    with torch.inference_mode():
        assert_same_logits(module(ids), expected)
        assert_same_logits(cached_logits(module, ids), expected)


ROTARY = {
    name: positions
    for name, values in DECODERS.items()
    if isinstance(
        positions := FAMILIES[name].config(ConfigReader(values)).positions, RotaryPositions
    )
    and positions.scaling is None
    and name not in ("gptj", "codegen")  # whose tables are no buffers
}


@pytest.mark.parametrize("name", ROTARY)
def test_keys_of_rotary_positions_are_read_where_transformers_reads_them(name: str) -> None:
    values = DECODERS[name] | {"partial_rotary_factor": 0.5, "rope_theta": 700.0}
    try:
        ours = FAMILIES[name].config(ConfigReader(values)).positions
    except ConfigError:  # it says that transformers ignores the share
        ours = replace(ROTARY[name], theta=700.0)
    config: Any = AutoConfig.for_model(**values)
    kind: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    (rotary,) = (part for part in model.modules() if hasattr(part, "inv_freq"))
    frequencies, _ = type(rotary).compute_default_rope_parameters(config)
    assert isinstance(ours, RotaryPositions)
    assert ours.dim == 2 * len(frequencies)
    torch.testing.assert_close(ours.theta ** (-2 / ours.dim), float(frequencies[1]))


def cached_logits(module: DecoderModel, ids: Tensor) -> Tensor:
    """Logits `(1, S, V)` of a sequence in chunks, with decode steps at the end."""
    length = ids.shape[1]
    later = (length - sum(CHUNKS) - STEPS) // LATER
    steps = length - sum(CHUNKS) - later * LATER
    cache = empty_cache(module.config, batch=1, capacity=length + 3)
    return in_steps(module, ids, [*CHUNKS, *[LATER] * later, *[1] * steps], cache)


# --- the head that predicts one more token --------------------------------------------------------

WITH_HEADS = {"deepseek_v3": DEEPSEEK_V3, "glm4_moe": GLM4_MOE}


def reference_head_logits(folder: Path, ids: Tensor) -> Tensor:
    """Logits of transformers' head after each token but the first, `(B, S - 1, V)`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    # transformers looks for the head in the layers that real models of this type leave out
    layer = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*"]
    head: Any = MtpModel.from_pretrained(model)
    with torch.inference_mode():
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        out = head.forward_layer(
            0,
            states[:, :-1],
            torch.arange(1, ids.shape[1])[None],
            MtpCache(config=model.config.get_mtp_config()),
            input_ids=ids[:, 1:],
        )
        logits: Tensor = head.shared_head(out)
    return logits


@pytest.mark.parametrize("name", WITH_HEADS)
def test_the_head_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    save_with_head(tmp_path, WITH_HEADS[name])
    ids = random_text(40, batch=2)
    model, head = load(tmp_path), load(mtp_checkpoint(tmp_path))
    with torch.inference_mode():
        states = model.states(ids)[:, :-1]
        logits = head(ids[:, 1:], previous_BSE=states)
        # the head attends to earlier pairs, and its answer depends on both parts of each
        assert (head(ids[:, 1:], previous_BSE=-states) - logits).abs().max() > 1
        assert_same_logits(logits, reference_head_logits(tmp_path, ids))
        cache, parts = empty_cache(head.config, batch=2, capacity=39), []
        for start, end in ((0, 9), (9, 34), *((at, at + 1) for at in range(34, 39))):
            length = torch.tensor(end).int()
            step = StepLengths((length - 1).expand(2), length, end)
            part, cache = head.step(
                ids[:, start + 1 : end + 1], step, cache, previous_BSE=states[:, start:end]
            )
            parts.append(part)
    assert_same_logits(torch.cat(parts, 1), logits)


def test_a_model_without_a_head_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    for values in (GLM4_MOE, LLAMA):
        reference_model(values).save_pretrained(tmp_path)
        assert refusal(lambda: mtp_checkpoint(tmp_path), tmp_path) == snapshot


def test_a_decoder_reads_states_only_where_its_config_says_so(tmp_path: Path) -> None:
    save_with_head(tmp_path, GLM4_MOE)
    ids = random_text(5)
    model, head = load(tmp_path), load(mtp_checkpoint(tmp_path))
    with pytest.raises(TypeError, match="previous states"):
        head(ids)
    with pytest.raises(TypeError, match="previous states"):
        model(ids, previous_BSE=model.states(ids))
