import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from make_checkpoint import bfloat16, blocks, make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoint") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        # Train the tokenizer on one package instead of the whole standard library.
        patch.setattr(sysconfig, "get_path", lambda _: str(Path(json.__file__).parent))
        make_checkpoint("tiny", out, layers=2)
    return out


def test_transformers_loads_every_tensor_and_gives_finite_logits(checkpoint: Path) -> None:
    # Typed as if it always returned the model alone.
    loaded: Any = LlamaForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    model, info = loaded
    assert not any(info.values()), info
    assert model.config.num_hidden_layers == 2
    assert model.dtype == torch.bfloat16
    with torch.inference_mode():
        logits = model(torch.arange(3, 35).reshape(1, -1)).logits
    assert logits.shape == (1, 32, 8192)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0


def test_tensors_larger_than_a_block_are_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(blocks("matrix", (10, 10), 0)))
    monkeypatch.setattr("make_checkpoint.BLOCK", 32)
    parts = list(blocks("matrix", (10, 10), 0))
    assert [len(part) for part in parts] == [32, 32, 32, 4]
    assert len(whole) == 100


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(bfloat16(array), expected)


def test_existing_checkpoint_and_a_model_without_layers_are_refused(checkpoint: Path) -> None:
    before = (checkpoint / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(FileExistsError, match="already"):
        make_checkpoint("tiny", checkpoint)
    assert (checkpoint / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="layers"):
        make_checkpoint("tiny", checkpoint / "other", layers=0)
