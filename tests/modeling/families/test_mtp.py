"""The head that predicts one more token: parity with transformers, and its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.mtp_checkpoints import save_with_head
from tests.modeling.tiny_models import LLAMA, assert_same_logits, random_text, reference_model
from tests.tiny.mixtures import GLM4_MOE
from tests.tiny.modern import DEEPSEEK_V3
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from ortolan.modeling import DecoderModel, load
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.errors import CheckpointError
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


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_head_has_the_logits_of_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    save_with_head(tmp_path, values)
    ids = random_text(40, batch=2)
    model, head = load(tmp_path), load(mtp_checkpoint(tmp_path))
    with torch.inference_mode():
        states = model.states(ids)[:, :-1]
        logits = head(ids[:, 1:], previous_BSE=states)
        # the head attends to earlier pairs, and its answer depends on both parts of each
        assert (head(ids[:, 1:], previous_BSE=-states) - logits).abs().max() > 1
    assert_same_logits(logits, reference_head_logits(tmp_path, ids))


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_cached_steps_of_the_head_equal_whole_sequences(
    values: dict[str, Any], tmp_path: Path
) -> None:
    save_with_head(tmp_path, values)
    ids = random_text(20)
    model, head = load(tmp_path), load(mtp_checkpoint(tmp_path))
    assert isinstance(head, DecoderModel)
    with torch.inference_mode():
        states = model.states(ids)
        whole = head(ids, previous_BSE=states)
        cache, parts = empty_cache(head.config, batch=1, capacity=20), []
        for start, end in ((0, 9), (9, 15), *((at, at + 1) for at in range(15, 20))):
            step = StepLengths(torch.tensor([end - 1]).int(), torch.tensor(end).int(), end)
            part, cache = head.step(
                ids[:, start:end], step, cache, previous_BSE=states[:, start:end]
            )
            parts.append(part)
    assert_same_logits(torch.cat(parts, 1), whole)


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    reference_model(GLM4_MOE).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no head .* model\.layers\.2\.\*"):
        mtp_checkpoint(tmp_path)
    reference_model(LLAMA).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="llama: no head"):
        mtp_checkpoint(tmp_path)


def test_a_decoder_reads_states_only_where_its_config_says_so(tmp_path: Path) -> None:
    save_with_head(tmp_path, GLM4_MOE)
    ids = random_text(5)
    model, head = load(tmp_path), load(mtp_checkpoint(tmp_path))
    with pytest.raises(TypeError, match="previous states"):
        head(ids)
    with pytest.raises(TypeError, match="previous states"):
        model(ids, previous_BSE=model.states(ids))
