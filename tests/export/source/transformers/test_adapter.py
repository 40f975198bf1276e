from collections.abc import Iterator
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.export.source.transformers.tiny import tiny_model
from tests.refusals import refusal
from tests.tiny.transformers_types import TYPES
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from ortolan.export.source.transformers.adapter import TransformersModule
from ortolan.export.source.transformers.attention import STEP, Mask, Step, make_mask
from ortolan.export.trace.module import find_carried
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.state import CachedState, State

FAST = ("diffllama", "gemma3_text", "gpt_oss", "lfm2", "minicpm3", "mixtral", "roberta")
"""Two attentions a layer, windows, sinks and experts, convolutions, narrow values, experts, and
positions that begin after the padding."""

NOT_STEPPED = {
    "blt": "its tiny config does not fit together",
    "deepseek_v4": "it hashes the ids of a prompt",
    "git": "adds numbers to its mask",
    "hrm_text": "its recurrence multiplies rounding; the certificate of an export refuses it",
    "minimax": "accepts only its own cache",
    "roformer": "its attention permutes scores",
    "xlstm": "accepts only its own cache",
    "zaya": "its convolution has no known width",
}
"""Types whose own code fails before there is anything to compare; an export refuses them."""

WITHOUT_TINY_MODEL = """
dots3_note dots3_note_text gemma3n gemma4_assistant gemma4_unified_assistant musicgen
musicgen_melody qwen4_exp qwen4_exp_text
"""
"""Types that `tiny_model` cannot make."""

REFUSED = """
axk2 big_bird bloom codegen cpmant dbrx deepseek_v32 doge falcon gemma4_unified glm_moe_dsa
gpt_neo gpt_neox_japanese gptj hy_v4 inkling2_text inkling_text jetmoe longcat_flash
megatron-bert mpt mvp openai-gpt prophetnet recurrent_gemma reformer rembert rwkv trocr xglm
xlm xlnet xmod
"""
"""Types whose attention does not go through the state, or whose tokens are not causal."""

CONTEXT, PROMPT, STEPS = 96, 33, 40

BOUND = 1e-4


def reference(model_type: str, **changes: Any) -> PreTrainedModel:
    return tiny_model(model_type, attention="eager", **changes)


def steps(adapter: nn.Module, ids: Tensor) -> Iterator[Tensor]:
    """The logits of a prompt, then of each later token."""
    carried = find_carried(adapter)
    caches = {
        layer: LayerCache(*(torch.zeros(1, a.num_kv_heads, CONTEXT, a.head_dim) for _ in "kv"))
        for layer, a in carried.layers.items()
    }
    memory = {name: torch.zeros(1, *shape) for name, shape in carried.kept.items()}
    for start, stop in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, ids.shape[1]))]:
        lengths = StepLengths(
            torch.tensor([stop - 1], dtype=torch.int32), torch.tensor(stop, dtype=torch.int32), stop
        )
        state = CachedState(lengths, caches, memory)
        yield adapter(ids[:, start:stop], state)
        caches, memory = state.presents, state.kept


def check(model: PreTrainedModel) -> None:
    ids = torch.randint(5, 100, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(ids, use_cache=False).logits
        adapter = TransformersModule(model, CONTEXT)
        whole = adapter(ids, State.whole())
        continued = torch.cat(list(steps(adapter, ids)), 1)
    for got in (whole, continued):
        assert ((got - expected).abs().max() / expected.abs().max()).item() <= BOUND


@pytest.mark.parametrize("model_type", FAST)
def test_logits_are_those_of_transformers(model_type: str) -> None:
    check(reference(model_type))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type", sorted({*TYPES} - {*FAST} - {*NOT_STEPPED} - {*WITHOUT_TINY_MODEL.split()})
)
def test_every_type_is_refused_or_computes_the_logits_of_transformers(model_type: str) -> None:
    if model_type in REFUSED.split():
        with pytest.raises(ConfigError):
            check(reference(model_type))
    else:
        check(reference(model_type))


def test_parameters_keep_their_names() -> None:
    model = reference("llama")
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in TransformersModule(model, CONTEXT).named_parameters()] == names


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("mpt", {}), ("bert", {"is_decoder": False}), ("deepseek_v32", {}), ("openai-gpt", {})],
)
def test_attention_without_the_state_is_refused(
    model_type: str, changes: dict[str, object], snapshot: SnapshotAssertion
) -> None:
    model = reference(model_type, **changes)
    assert refusal(lambda: find_carried(TransformersModule(model, CONTEXT))) == snapshot


def test_positions_are_selected_before_the_head() -> None:
    adapter = TransformersModule(reference("llama"), CONTEXT)

    class LastOnly(type(State.whole())):  # type: ignore[misc]
        def select(self, x: Tensor) -> Tensor:
            return x[:, -1:]

    ids = torch.arange(5, 9)[None]
    with torch.inference_mode():
        whole, last = (adapter(ids, state) for state in (State.whole(), LastOnly()))
    assert last.shape[1] == 1
    assert torch.allclose(last, whole[:, -1:], atol=1e-6)


def seen(function: Any) -> Mask:
    token = STEP.set(Step(State.whole(), torch.zeros(1, 1), CONTEXT))
    try:
        return make_mask(mask_function=function, batch_size=1, q_length=1)
    finally:
        STEP.reset(token)


def test_masks_are_described_by_what_tokens_see() -> None:
    padding = torch.zeros(1, dtype=torch.int64)
    assert seen(causal_mask_function) == Mask(window=None)
    assert seen(sliding_window_causal_mask_function(7)) == Mask(window=7)
    assert seen(sliding_window_causal_mask_function(CONTEXT)) == Mask(window=None)
    assert seen(chunked_causal_mask_function(CONTEXT, padding)) == Mask(window=None)
    assert "chunks of 16 tokens" in str(seen(chunked_causal_mask_function(16, padding)).problem)
    assert seen(bidirectional_mask_function).problem == "its mask is another one"

    def of_this_step(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(1, 3, dtype=torch.bool)[batch, key]

    mask = seen(and_masks(causal_mask_function, of_this_step))
    assert mask.problem == "its mask depends on the tokens"
