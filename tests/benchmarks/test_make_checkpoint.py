import io
import json
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from make_checkpoint import (
    LLAMA,
    SHAPES,
    bfloat16,
    blocks,
    make_checkpoint,
    tensor_shapes,
    write_weights,
)


def weights(shapes: Mapping[str, tuple[int, ...]], *, seed: int) -> dict[str, torch.Tensor]:
    file = io.BytesIO()
    write_weights(file, shapes, seed)
    return load(file.getvalue())


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


@pytest.mark.parametrize(("shape", "millions"), [("tiny", 6), ("135m", 135), ("1b", 1236)])
def test_tensors_have_the_names_and_shapes_of_transformers(shape: str, millions: int) -> None:
    config: dict[str, Any] = {**LLAMA, **SHAPES[shape]}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert tensor_shapes(config) == expected
    assert round(model.num_parameters() / 1e6) == millions


def test_weights_depend_on_the_seed_and_not_on_the_number_of_layers() -> None:
    shallow, again, other = (weights({"layers.0": (8, 8)}, seed=seed) for seed in (0, 0, 1))
    deep = weights({"layers.0": (8, 8), "layers.1": (8, 8)}, seed=0)
    assert torch.equal(shallow["layers.0"], again["layers.0"])
    assert torch.equal(shallow["layers.0"], deep["layers.0"])
    assert not torch.equal(shallow["layers.0"], other["layers.0"])
    assert not torch.equal(deep["layers.0"], deep["layers.1"])


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


def test_tokenizer_has_the_ids_of_the_config_and_restores_text(checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    config = json.loads((checkpoint / "config.json").read_text())
    assert tokenizer.token_to_id("<s>") == config["bos_token_id"]
    assert tokenizer.token_to_id("</s>") == config["eos_token_id"]
    text = 'def greet(name: str) -> None:\n    print(f"¡Hola, {name}!")\n'
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() <= config["vocab_size"]


def test_existing_checkpoint_and_a_model_without_layers_are_refused(checkpoint: Path) -> None:
    before = (checkpoint / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(FileExistsError, match="already"):
        make_checkpoint("tiny", checkpoint)
    assert (checkpoint / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="layers"):
        make_checkpoint("tiny", checkpoint / "other", layers=0)
