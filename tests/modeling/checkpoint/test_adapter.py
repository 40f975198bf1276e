"""PEFT adapters, merged on reading, against `merge_and_unload` of PEFT."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.packed_files import METHODS, write_packed
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import LLAMA, assert_same_logits, reference_model
from tests.tiny.decoders import GPT2
from torch import Tensor

from ortolan.modeling import load
from ortolan.modeling.checkpoint.adapter import Adapted
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint

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
    source = open_checkpoint(base, adapter=adapter).tensors
    return source.read(name, 0, source.shapes()[name][0])


def stored(base: Path, name: str) -> Tensor:
    return load_file(base / "model.safetensors")[name]


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 3}, 0.75),
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 20}}, 5.0),
        ({"alpha_pattern": {r"^model\.layers\.0\.self_attn\.q_proj": 20}}, 5.0),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 20}}, 2.0),
    ],
)
def test_updates_are_scaled_as_the_config_says(
    base: Path, tmp_path: Path, more: dict[str, Any], scale: float
) -> None:
    products = {module: factors(shape) for module, shape in SHAPES.items()}
    write_adapter(tmp_path / "adapter", products, **more)
    name = f"{Q}.weight"
    a, b = products[Q]
    expected = stored(base, name) + scale * (b @ a)
    torch.testing.assert_close(merged(base, tmp_path / "adapter", name), expected)
    source = open_checkpoint(base, adapter=tmp_path / "adapter").tensors
    torch.testing.assert_close(source.read(name, 5, 9), expected[5:9])
    torch.testing.assert_close(source.read(name, 5, 9, axis=1), expected[:, 5:9])
    other = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(source.read(other, 0, 48), stored(base, other))


def test_the_rank_is_taken_from_each_update(base: Path, tmp_path: Path) -> None:
    products = {Q: factors(SHAPES[Q], 2), UP: factors(SHAPES[UP], 4)}
    write_adapter(tmp_path / "adapter", products, rank_pattern={"q_proj": 2})
    for module, scale in ((Q, 4.0), (UP, 2.0)):
        a, b = products[module]
        expected = stored(base, f"{module}.weight") + scale * (b @ a)
        torch.testing.assert_close(merged(base, tmp_path / "adapter", f"{module}.weight"), expected)


def test_updates_of_transposed_matrices_are_transposed(tmp_path: Path) -> None:
    reference_model(GPT2).save_pretrained(tmp_path / "base")
    module = "transformer.h.1.attn.c_attn"
    a, b = factors((96, 32))
    write_adapter(tmp_path / "adapter", {module: (a, b)}, fan_in_fan_out=True)
    name = f"{module}.weight"
    expected = stored(tmp_path / "base", name) + 2 * (b @ a).T
    source = open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter").tensors
    torch.testing.assert_close(source.read(name, 0, 32), expected)
    torch.testing.assert_close(source.read(name, 5, 9), expected[5:9])
    torch.testing.assert_close(source.read(name, 5, 90, axis=1), expected[:, 5:90])


def test_a_square_matrix_is_transposed_if_the_family_stores_it_so(tmp_path: Path) -> None:
    reference_model(GPT2).save_pretrained(tmp_path / "base")
    module, name = "transformer.h.1.attn.c_proj", "transformer.h.1.attn.c_proj.weight"
    a, b = factors((32, 32))
    for flag in (False, True):  # PEFT stores that of the last module
        write_adapter(tmp_path / "adapter", {module: (a, b)}, fan_in_fan_out=flag)
        expected = stored(tmp_path / "base", name) + 2 * (b @ a).T
        read = merged(tmp_path / "base", tmp_path / "adapter", name)
        torch.testing.assert_close(read, expected)


@pytest.mark.parametrize("changed", ["embedding", "head", "saved embedding"])
def test_a_tied_weight_is_changed_only_where_the_adapter_says(tmp_path: Path, changed: str) -> None:
    tied, untied = (
        reference_model(LLAMA | {"tie_word_embeddings": is_tied}) for is_tied in (True, False)
    )
    tied.save_pretrained(tmp_path / "base")
    untied.load_state_dict(tied.state_dict())
    a, b = factors((97, 32))
    table = torch.randn(97, 32)
    tensors = {
        "embedding": {
            f"base_model.model.{EMBEDDING}.lora_embedding_A": b.T.contiguous(),
            f"base_model.model.{EMBEDDING}.lora_embedding_B": a.T.contiguous(),
        },
        "head": {
            "base_model.model.lm_head.lora_A.weight": a,
            "base_model.model.lm_head.lora_B.weight": b,
        },
        "saved embedding": {f"base_model.model.{EMBEDDING}.weight": table},
    }[changed]
    write_adapter(tmp_path / "adapter", {Q: factors(SHAPES[Q])}, tensors=tensors)
    ours = load(open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter"))
    with torch.no_grad():
        q_a, q_b = factors(SHAPES[Q])
        untied.get_parameter(f"{Q}.weight").add_(2 * (q_b @ q_a))
        name = "lm_head.weight" if changed == "head" else f"{EMBEDDING}.weight"
        weight = untied.get_parameter(name)
        weight.copy_(table if changed == "saved embedding" else weight + 2 * (b @ a))
        ids = torch.arange(12)[None]
        assert_same_logits(ours(ids), untied(input_ids=ids).logits)


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


def test_embeddings_and_whole_modules_are_read_from_the_adapter(base: Path, tmp_path: Path) -> None:
    a, b = factors((32, 97))
    head, table = torch.randn(97, 32), torch.randn(97, 32)
    norm = torch.randn(32)
    tensors = {
        f"base_model.model.{EMBEDDING}.lora_embedding_A": a,
        f"base_model.model.{EMBEDDING}.lora_embedding_B": b,
        f"base_model.model.{EMBEDDING}.base_layer.weight": table,
        "base_model.model.lm_head.weight": head,
        "base_model.model.model.norm.weight": norm,
    }
    write_adapter(tmp_path / "adapter", {}, tensors=tensors, modules_to_save=["lm_head", "norm"])
    read = merged(base, tmp_path / "adapter", f"{EMBEDDING}.weight")
    torch.testing.assert_close(read, table + 2 * (b @ a).T)
    assert torch.equal(merged(base, tmp_path / "adapter", "lm_head.weight"), head)
    assert torch.equal(merged(base, tmp_path / "adapter", "model.norm.weight"), norm)


def test_an_adapted_model_equals_the_merged_one(base: Path, tmp_path: Path) -> None:
    products = {module: factors(shape) for module, shape in SHAPES.items()}
    write_adapter(tmp_path / "adapter", products)
    ours = load(open_checkpoint(base, adapter=tmp_path / "adapter"))
    reference = reference_model(LLAMA)
    with torch.no_grad():
        for module, (a, b) in products.items():
            reference.get_parameter(f"{module}.weight").add_(2 * (b @ a))
        ids = torch.arange(12)[None]
        torch.testing.assert_close(ours(ids), reference(input_ids=ids).logits)


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
    source = open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter").tensors
    assert isinstance(source, Adapted)
    assert source.code_format(f"{Q}.weight") is None
    other = "model.layers.1.self_attn.q_proj.weight"
    assert source.code_format(other) is not None
    assert source.is_quantized()
    assert source.codes(other, 3, 5).values.shape == (2, 64)


# --- refused ------------------------------------------------------------------------------------


def test_an_adapter_for_another_model_is_refused(base: Path, tmp_path: Path) -> None:
    products = {f"model.layers.{i}.self_attn.q_proj": factors((32, 32)) for i in range(9)}
    write_adapter(tmp_path / "adapter", products)
    message = refused(base, tmp_path / "adapter")
    assert "model.layers.2.self_attn.q_proj" in message
    assert "and 4 more" in message
    write_adapter(tmp_path / "adapter", {UP: factors((64, 48))})
    assert f"{UP}.weight has shape (64, 48), not (48, 32)" in refused(base, tmp_path / "adapter")


def test_a_resized_vocabulary_and_a_new_module_are_explained(base: Path, tmp_path: Path) -> None:
    tensors = {
        f"base_model.model.{EMBEDDING}.weight": torch.randn(99, 32),
        "base_model.model.lm_head.weight": torch.randn(99, 32),
    }
    write_adapter(tmp_path / "adapter", {}, tensors=tensors)
    assert "call resize_token_embeddings(99)" in refused(base, tmp_path / "adapter")
    tensors = {"base_model.model.score.weight": torch.randn(3, 32)}
    write_adapter(tmp_path / "adapter", {Q: factors(SHAPES[Q])}, tensors=tensors)
    assert "It trains modules that the checkpoint lacks" in refused(base, tmp_path / "adapter")


def test_the_folders_of_named_adapters_are_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    for name in ("first", "second"):
        write_adapter(tmp_path / "adapters" / name, {Q: factors(SHAPES[Q])})
    assert "Pass one of its folders: first, second." in refused(base, tmp_path / "adapters")


MAGNITUDE = {f"base_model.model.{Q}.lora_magnitude_vector.weight": torch.ones(32)}

CONVOLUTION = {
    f"base_model.model.{UP}.lora_{factor}.weight": torch.ones(4, 4, 1) for factor in ("A", "B")
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "'pissa'"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"tensors": MAGNITUDE}, "lora_magnitude_vector"),
        ({"tensors": CONVOLUTION}, "LoRA of a convolution"),
        ({"method_of_tomorrow": {"rank": 3}}, "method_of_tomorrow"),
    ],
)
def test_another_kind_of_adapter_is_refused(
    base: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_adapter(tmp_path / "adapter", {Q: factors(SHAPES[Q])}, **change)
    assert message in refused(base, tmp_path / "adapter")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_absent_file_is_named(base: Path, tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path / "adapter", {Q: factors(SHAPES[Q])})
    (tmp_path / "adapter" / name).unlink()
    assert name in refused(base, tmp_path / "adapter")


def test_one_factor_alone_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    tensors = write_adapter(adapter, {Q: factors(SHAPES[Q])})
    del tensors[f"base_model.model.{Q}.lora_B.weight"]
    save_file(tensors, adapter / "adapter_model.safetensors")
    assert "lora_B.weight" in refused(base, adapter)
