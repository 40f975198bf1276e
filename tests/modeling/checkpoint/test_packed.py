"""Low-bit checkpoints: tensors equal their dequantized codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import edit, reconfigure, refused
from tests.modeling.checkpoint.packed_files import GROUP, METHODS, WIDE, write_packed
from tests.modeling.mxfp4_files import save_gpt_oss
from tests.modeling.tiny_models import (
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.refusals import named_rows
from tests.tiny.decoders import GPT2
from torch import Tensor

from ortolan.modeling import load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import open_weights, read_config
from ortolan.modeling.codes import CodeFormat
from ortolan.modeling.lazy_tensor import whole_of

DOWN = "model.layers.1.mlp.down_proj.weight"

KEPT = {
    "gptq-4": CodeFormat(4, GROUP, False),
    "gptq-4-symmetric": CodeFormat(4, GROUP, True),
    "gptq-8": CodeFormat(8, GROUP, True),
    "gptq-v2": CodeFormat(4, GROUP, False),
    "gptq-v2-symmetric": CodeFormat(4, GROUP, True),
    "gptq-without-index": CodeFormat(4, GROUP, False),
    "awq": CodeFormat(4, GROUP, False),
    "awq-symmetric": CodeFormat(4, GROUP, True),
    "compressed-4": CodeFormat(4, GROUP, True),
    "compressed-4-asymmetric": CodeFormat(4, GROUP, False),
    "compressed-4-signed-zeros": CodeFormat(4, GROUP, False),
    "compressed-8-signed-zeros": CodeFormat(8, GROUP, False),
    "compressed-4-stored-middle": CodeFormat(4, GROUP, True),
    "compressed-unset-order": CodeFormat(4, GROUP, True),
    "compressed-8": CodeFormat(8, GROUP, True),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_tensor_equals_its_dequantized_codes(name: str, tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS[name])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.is_quantized
    source = checkpoint.tensors
    assert checkpoint.opened.of_part(str).is_quantized
    assert source.keys() == expected.keys()
    for tensor, value in expected.items():
        assert source[tensor].shape == value.shape
        read = whole_of(source[tensor])
        torch.testing.assert_close(read, value, rtol=1e-6, atol=1e-7, msg=tensor)
    for start, stop in ((0, 1), (5, 19), (33, 64)):
        part = source[DOWN].read(start, stop)
        torch.testing.assert_close(part, expected[DOWN][start:stop], rtol=1e-6, atol=1e-7)
    columns = source[DOWN].read(7, 40, 1)
    torch.testing.assert_close(columns, expected[DOWN][:, 7:40], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_codes_are_available_if_kernels_support_them(name: str, tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS[name])
    source = open_checkpoint(tmp_path).tensors
    stored = source[DOWN].codes
    result = None if stored is None else stored.format
    assert result == KEPT.get(name)
    assert source["model.norm.weight"].codes is None
    if stored is None or result is None:
        return
    codes = stored.rows(5, 21)
    assert codes.values.shape == (16, 96)
    groups = torch.arange(96) // GROUP
    values = codes.values.float() - codes.zeros.float()[:, groups]
    torch.testing.assert_close(values * codes.scales[:, groups], expected[DOWN][5:21])
    assert result.symmetric == bool((codes.zeros == 1 << (result.bits - 1)).all())


@pytest.mark.parametrize("name", ["gptq-4", "awq", "compressed-4"])
def test_codes_of_joined_projections_are_concatenated(name: str, tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS[name])
    config = read_config(tmp_path)
    weights = open_weights(tmp_path, config)
    qkv = "blocks.0.attention.qkv.weight"
    stored = weights.codes(qkv)
    assert stored is not None
    assert stored.format == KEPT[name]
    parts = [expected[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    rows = torch.cat(parts)
    codes = stored.rows(50, 110)
    groups = torch.arange(64) // GROUP
    values = (codes.values.float() - codes.zeros.float()[:, groups]) * codes.scales[:, groups]
    torch.testing.assert_close(values, rows[50:110])
    assert weights.codes("embedding.weight") is None


def test_a_config_alone_does_not_make_weights_quantized(tmp_path: Path) -> None:
    reference_model(WIDE).save_pretrained(tmp_path)
    reconfigure(tmp_path, quantization_config={"quant_method": "fp8"})
    assert not open_checkpoint(tmp_path).is_quantized


@pytest.mark.parametrize("name", ["gptq-4", "nf4", "bitsandbytes-8"])
def test_layers_published_transposed_are_read_with_outputs_first(name: str, tmp_path: Path) -> None:
    reference = reference_model(GPT2 | {"n_embd": 64, "n_head": 4, "n_inner": 96})
    reference.save_pretrained(tmp_path)

    def pack(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if re.search(r"c_(attn|proj|fc)\.weight", key)]:
            packed = METHODS[name].pack(tensors.pop(key).T.contiguous())
            tensors |= {
                f"{key.removesuffix('weight')}{part}": value.clone()
                for part, value in packed.stored.items()
            }
            reference.get_parameter(key).data = packed.dequantized.T

    edit(tmp_path, pack)
    reconfigure(tmp_path, quantization_config=METHODS[name].config)
    ids = random_text(12)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(reference, ids))
    # an adapter of a square matrix and of another one
    adapter, tensors = tmp_path / "adapter", dict[str, Tensor]()
    for module, outputs in (("attn.c_proj", 64), ("attn.c_attn", 192)):
        a, b = torch.randn(2, 64), torch.randn(outputs, 2)
        place = f"transformer.h.0.{module}"
        tensors |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
        reference.get_parameter(f"{place}.weight").data += (b @ a).T
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 2, "init_lora_weights": True}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        adapted = load(open_checkpoint(tmp_path, adapter=adapter))
        assert_same_logits(adapted(ids), reference_logits(reference, ids))


def test_an_mxfp4_mixture_equals_its_dequantized_one(tmp_path: Path) -> None:
    reference, ids = save_gpt_oss(tmp_path), random_text(20)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(reference, ids))


# --- refused ------------------------------------------------------------------------------------


def both(target: str) -> dict[str, Any]:
    """Groups of which the last has this target."""
    groups = METHODS["compressed-groups"].config["config_groups"]
    return {
        "config_groups": {"down": groups["down"] | {"targets": [target]}}
        | {name: group for name, group in groups.items() if name != "down"}
    }


CONFIGS: dict[str, list[dict[str, Any]]] = {
    "gptq-4": [
        *(
            {"quant_method": name}
            for name in ("hqq", "quanto", "torchao", "modelopt", "nvfp4", "auto-round", None)
        ),
        {"bits": 3},
        {"bits": 8},
        {"checkpoint_format": "marlin"},
        {"group_size": 64},
        {"group_size": None},
        {"sym": True},
        {"adapter": {"rank": 8}},
    ],
    "gptq-4-symmetric": [{"checkpoint_format": "gptq_v2"}],
    "gptq-ordered": [{"desc_act": False}],
    "gptq-without-index": [{"desc_act": True}],
    "gptq-dynamic": [{"dynamic": {}}, {"dynamic": {"[": {}}}],
    "awq": [{"version": "gemv"}, {"backend": "llm-awq"}, {"zero_point": False}, {"group_size": 16}],
    "compressed-4": [
        {"config_groups": {}},
        {"config_groups": {"W4A16": ["Linear"]}},
        {"config_groups": {"group_0": {"weights": []}}},
        {"format": "marlin-24"},
        {"format": "nvfp4-pack-quantized"},
        {"sparsity_config": {"format": "sparse-24-bitmask"}},
        {"transform_config": {"config_groups": {"u": {}}}},
    ],
    "compressed-groups": [both("re:.*down.*"), both("other"), both("re:other")],
    "fp8-blocks": [{"weight_block_size": size} for size in ([16, 32], None, 16)],
}
"""Changes of the config of a method."""

SCHEMES: dict[str, list[dict[str, Any]]] = {
    "compressed-4": [
        {"num_bits": 8},
        {"num_bits": 3},
        {"type": "float"},
        {"group_size": 16},
        {"group_size": 0},
        {"strategy": "channel"},
        {"strategy": "tensor_group"},
        {"symmetric": False},
        {"actorder": "group"},
    ],
    "compressed-4-signed-zeros": [{"symmetric": True}],
    "compressed-ordered": [{"actorder": "weight"}],
    "int8-channel": [{"num_bits": 9}, {"type": "float"}, {"strategy": "tensor"}],
    "int8-channel-asymmetric": [{"symmetric": True}],
    "fp8-block-48x32": [{"block_structure": [32, 48]}, {"block_structure": "48"}],
}
"""Changes of the weights of the only group of compressed-tensors."""


def with_scheme(name: str, change: dict[str, Any]) -> dict[str, Any]:
    weights = METHODS[name].config["config_groups"]["group_0"]["weights"] | change
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


CHANGES = named_rows(CONFIGS) | {
    row: (name, with_scheme(name, change)) for row, (name, change) in named_rows(SCHEMES).items()
}


@pytest.mark.parametrize("row", CHANGES)
def test_a_config_that_contradicts_the_tensors_is_refused(
    row: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    name, change = CHANGES[row]
    write_packed(tmp_path, METHODS[name])
    reconfigure(tmp_path, quantization_config=METHODS[name].config | change)
    assert refused(tmp_path) == snapshot


def last_changed(tensor: Tensor) -> Tensor:
    """A tensor with another last number."""
    return torch.cat([tensor.flatten()[:-1], tensor.flatten()[-1:] + 1]).view(tensor.shape)


PARTS: dict[str, dict[str, tuple[str, Callable[[Tensor], Tensor] | None]]] = {
    "gptq-4": {
        "long words": ("qweight", lambda t: t.long()),
        "narrow scales": ("scales", lambda t: t[:, :8]),
        "other groups": ("g_idx", lambda t: t + 1),
        "a short index": ("g_idx", lambda t: t[:-1]),
        "no zeros": ("qzeros", None),
        "no scales": ("scales", None),
    },
    "gptq-4-symmetric": {"another zero": ("qzeros", last_changed)},
    "awq": {"no scales": ("scales", None)},
    "compressed-4-stored-middle": {"another zero": ("weight_zero_point", last_changed)},
    "int8-channel-asymmetric": {"fewer zeros": ("weight_zero_point", lambda t: t[:3])},
    "compressed-4": {
        "another shape": ("weight_shape", lambda t: t + 64),
        "an empty shape": ("weight_shape", lambda t: t * 0),
        "a shape in floats": ("weight_shape", lambda t: t.float()),
        "no shape": ("weight_shape", None),
        "no scales": ("weight_scale", None),
    },
    "nf4": {
        "fewer maxima": ("weight.absmax", lambda t: t[:-1]),
        "no maxima": ("weight.absmax", None),
        "no table": ("weight.quant_map", None),
    },
    "bitsandbytes-8": {
        "another format": ("weight_format", lambda t: t + 2),
        "bytes": ("weight", lambda t: t.view(torch.uint8)),
    },
    "fp8-tensor": {"integers": ("weight", lambda t: t.to(torch.int8))},
    "int8-channel": {"bytes": ("weight", lambda t: t.to(torch.uint8))},
}
"""Changes of a stored part of a layer; None removes it."""


@pytest.mark.parametrize(("name", "row"), [(name, row) for name in PARTS for row in PARTS[name]])
def test_a_part_that_contradicts_the_config_is_refused(
    name: str, row: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write_packed(tmp_path, METHODS[name])
    part, change = PARTS[name][row]
    tensor = f"model.layers.1.mlp.up_proj.{part}"
    edit(
        tmp_path,
        lambda t: t.pop(tensor) if change is None else t.update({tensor: change(t[tensor])}),
    )
    assert refused(tmp_path) == snapshot


def test_codes_without_a_quantization_config_are_unexpected(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write_packed(tmp_path, METHODS["gptq-4"])
    reconfigure(tmp_path, quantization_config=None)
    assert refused(tmp_path) == snapshot
