"""The head that predicts one more token: parity with transformers, and its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.modeling.mtp_checkpoints import save_with_head
from tests.modeling.tiny_models import LLAMA, assert_same_logits, random_text, reference_model
from tests.refusals import refusal
from tests.tiny.mixtures import GLM4_MOE
from tests.tiny.modern import DEEPSEEK_V3
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from ortolan.modeling import load
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.layers.cache import StepLengths, empty_cache

CASES = {"deepseek_v3": DEEPSEEK_V3, "glm4_moe": GLM4_MOE}


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


@pytest.mark.parametrize("name", CASES)
def test_the_head_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    save_with_head(tmp_path, CASES[name])
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
