from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from make_checkpoint import LLAMA, SHAPES
from workers.llama_weights import interleaved, rope_factors, tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_tensors_are_read_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    written = {
        "a.weight": torch.randn(3, 5).to(dtype),
        "b.weight": torch.tensor([1.0, -0.0, 6e-8]).to(dtype),
    }
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    result = {tensor.name: tensor.read() for tensor in tensors(tmp_path)}
    assert set(result) == set(written)
    for name, values in written.items():
        np.testing.assert_array_equal(result[name], values.float().numpy())


def test_interleaved_rows_pair_the_halves_of_a_head() -> None:
    # 2 heads of 6 rows: rows i and i + 3 of a head become neighbors.
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_rope_factors_equal_transformers() -> None:
    config = {**LLAMA, **SHAPES["1b"]}
    reference = LlamaConfig(**config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference, torch.device("cpu"))
    size = config["head_dim"]
    plain = config["rope_theta"] ** -(np.arange(0, size, 2) / size)
    factors = rope_factors(config)
    assert factors is not None
    np.testing.assert_allclose(plain / factors, scaled.numpy(), rtol=1e-6)
