"""Adapters, merged on reading: slices, names, and refusals. For the formula see test_peft."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import refused
from tests.modeling.checkpoint.packed_files import METHODS, write_packed
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.decoders import GPT2
from torch import Tensor

from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.lazy_tensor import whole_of

Q = "model.layers.0.self_attn.q_proj"
UP = "model.layers.1.mlp.up_proj"
EMBEDDING = "model.embed_tokens"

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "up_proj"],
    "init_lora_weights": True,
    "use_dora": False,
    "fan_in_fan_out": False,
}

SHAPES = {Q: (32, 32), UP: (48, 32)}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def factors(shape: tuple[int, int], rank: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`A` and `B` for a matrix `(outputs, inputs)`."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rank, shape[1], generator=generator),
        torch.randn(shape[0], rank, generator=generator),
    )


def write_adapter(
    folder: Path, products: dict[str, tuple[Tensor, Tensor]], **more: Any
) -> dict[str, Tensor]:
    """Write an adapter of some modules; return the tensors that it stores."""
    folder.mkdir(exist_ok=True)
    tensors = dict(more.pop("tensors", {}))
    for module, (a, b) in products.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | more))
    return tensors


def merged(base: Path, adapter: Path, name: str) -> Tensor:
    return whole_of(open_checkpoint(base, adapter=adapter).tensors[name])


def stored(base: Path, name: str) -> Tensor:
    return load_file(base / "model.safetensors")[name]


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({"lora_alpha": 3}, 0.75),
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {r"^model\.layers\.0\.self_attn\.q_proj": 20}}, 5.0),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 20}}, 2.0),
    ],
)
def test_slices_of_updates_are_scaled_as_the_config_says(
    base: Path, tmp_path: Path, more: dict[str, Any], scale: float
) -> None:
    products = {module: factors(shape) for module, shape in SHAPES.items()}
    write_adapter(tmp_path / "adapter", products, **more)
    name, other = f"{Q}.weight", "model.layers.0.mlp.up_proj.weight"
    a, b = products[Q]
    expected = stored(base, name) + scale * (b @ a)
    source = open_checkpoint(base, adapter=tmp_path / "adapter").tensors
    torch.testing.assert_close(source[name].read(5, 9), expected[5:9])
    torch.testing.assert_close(source[name].read(5, 9, 1), expected[:, 5:9])
    assert torch.equal(whole_of(source[other]), stored(base, other))


@pytest.mark.parametrize("flag", [False, True])  # PEFT stores that of the last module
@pytest.mark.parametrize(("part", "width"), [("c_attn", 96), ("c_proj", 32)])
def test_slices_of_transposed_matrices_are_transposed(
    part: str, width: int, flag: bool, tmp_path: Path
) -> None:
    reference_model(GPT2).save_pretrained(tmp_path / "base")
    module = f"transformer.h.1.attn.{part}"
    a, b = factors((width, 32))
    write_adapter(tmp_path / "adapter", {module: (a, b)}, fan_in_fan_out=flag or width != 32)
    name = f"{module}.weight"
    expected = stored(tmp_path / "base", name) + 2 * (b @ a).T
    source = open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter").tensors
    torch.testing.assert_close(whole_of(source[name]), expected)
    torch.testing.assert_close(source[name].read(5, 9), expected[5:9])
    torch.testing.assert_close(source[name].read(5, 30, 1), expected[:, 5:30])


@pytest.mark.parametrize("prefix", ["", "model.", "_orig_mod.base_model.model._orig_mod.model."])
def test_names_may_leave_out_the_prefix_of_the_base_model(
    base: Path, tmp_path: Path, prefix: str
) -> None:
    a, b = factors(SHAPES[Q])
    expected = stored(base, f"{Q}.weight") + 2 * (b @ a)
    module = Q.removeprefix("model.")
    tensors = {f"{prefix}{module}.lora_A.weight": a, f"{prefix}{module}.lora_B.weight": b}
    write_adapter(tmp_path / "adapter", {}, tensors=tensors)
    torch.testing.assert_close(merged(base, tmp_path / "adapter", f"{Q}.weight"), expected)
    names = load_file(base / "model.safetensors").items()
    bare = {name.removeprefix("model."): tensor for name, tensor in names}
    save_file(bare, base / "model.safetensors")
    torch.testing.assert_close(merged(base, tmp_path / "adapter", f"{module}.weight"), expected)


def test_an_update_is_added_to_an_embedding_of_the_adapter(base: Path, tmp_path: Path) -> None:
    (a, b), table = factors((32, 97)), torch.randn(97, 32)
    tensors = {
        f"base_model.model.{EMBEDDING}.lora_embedding_A": a,
        f"base_model.model.{EMBEDDING}.lora_embedding_B": b,
        f"base_model.model.{EMBEDDING}.base_layer.weight": table,
    }
    write_adapter(tmp_path / "adapter", {}, tensors=tensors)
    read = merged(base, tmp_path / "adapter", f"{EMBEDDING}.weight")
    torch.testing.assert_close(read, table + 2 * (b @ a).T)


def test_a_change_of_the_adapter_changes_the_hash(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    hashes = {open_checkpoint(base).sha256()}
    for seed, more in ((0, {}), (1, {}), (1, {"lora_alpha": 9})):
        write_adapter(adapter, {Q: factors(SHAPES[Q], seed=seed)}, **more)
        hashes.add(open_checkpoint(base, adapter=adapter).sha256())
    assert len(hashes) == 4


def test_weights_that_an_adapter_changes_have_no_codes(tmp_path: Path) -> None:
    write_packed(tmp_path / "base", METHODS["gptq-4"])
    write_adapter(tmp_path / "adapter", {Q: factors((64, 64))})
    checkpoint = open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter")
    assert checkpoint.tensors[f"{Q}.weight"].codes is None
    other = checkpoint.tensors["model.layers.1.self_attn.q_proj.weight"].codes
    assert other is not None
    assert other.format is not None
    assert other.rows(3, 5).values.shape == (2, 64)
    assert checkpoint.is_quantized


# --- refused ------------------------------------------------------------------------------------


def tensors_of(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {f"base_model.model.{name}": torch.ones(shape) for name, shape in shapes.items()}


RESIZED = {f"{EMBEDDING}.weight": (99, 32), "lm_head.weight": (99, 32)}

REFUSED: dict[str, dict[str, Any]] = {
    "another model": {
        "products": {f"model.layers.{i}.self_attn.q_proj": factors((32, 32)) for i in range(9)}
    },
    "another shape": {"products": {UP: factors((64, 48))}},
    "more tokens": {"products": {}, "tensors": tensors_of(**RESIZED)},
    "a new module": {"tensors": tensors_of(**{"score.weight": (3, 32)})},
    "magnitudes": {"tensors": tensors_of(**{f"{Q}.lora_magnitude_vector.weight": (32,)})},
    "a convolution": {
        "tensors": tensors_of(**{f"{UP}.lora_{side}.weight": (4, 4, 1) for side in "AB"})
    },
    "one factor": {"tensors": tensors_of(**{f"{UP}.lora_A.weight": (4, 32)})},
    "another method": {"peft_type": "IA3"},
    "DoRA": {"use_dora": True},
    "PiSSA": {"init_lora_weights": "pissa"},
    "a text as alpha": {"lora_alpha": "8"},
    "an unknown key": {"method_of_tomorrow": {"rank": 3}},
}
"""Changes of an adapter of one module."""


@pytest.mark.parametrize("name", REFUSED)
def test_another_adapter_is_refused(
    name: str, base: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write_adapter(tmp_path / "adapter", **{"products": {Q: factors(SHAPES[Q])}} | REFUSED[name])
    assert refused(base, tmp_path / "adapter") == snapshot


def test_absent_files_and_several_adapters_are_named(
    base: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        write_adapter(tmp_path / "adapter", {Q: factors(SHAPES[Q])})
        (tmp_path / "adapter" / name).unlink()
        assert refused(base, tmp_path / "adapter") == snapshot
    (tmp_path / "adapters").mkdir()
    for name in ("first", "second"):
        write_adapter(tmp_path / "adapters" / name, {Q: factors(SHAPES[Q])})
    assert refused(base, tmp_path / "adapters") == snapshot
