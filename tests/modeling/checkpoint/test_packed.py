"""Low-bit checkpoints: tensors equal their dequantized codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.modeling.checkpoint.packed_files import GROUP, METHODS, WIDE, write_packed
from tests.modeling.checkpoint.refusals import edit, reconfigure, refused, reshape
from tests.modeling.mxfp4_files import save_gpt_oss
from tests.modeling.tiny_models import (
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.tiny.decoders import GPT2
from torch import Tensor

from ortolan.modeling import CheckpointError, WeightError, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import open_weights, read_config
from ortolan.modeling.checkpoint.packed.floats import dequantize_mxfp4
from ortolan.modeling.checkpoint.packed.unpacked import Unpacked
from ortolan.modeling.checkpoint.safetensors import Safetensors
from ortolan.modeling.checkpoint.text_tower import PartTensors
from ortolan.modeling.weights import Coded, CodeFormat

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


def last_changed(tensor: Tensor) -> Tensor:
    """A tensor with another last number."""
    return torch.cat([tensor.flatten()[:-1], tensor.flatten()[-1:] + 1]).view(tensor.shape)


def both(target: str) -> dict[str, Any]:
    """Groups of which the last has this target."""
    groups = METHODS["compressed-groups"].config["config_groups"]
    return {**groups, "down": {**groups["down"], "targets": [target]}}


@pytest.mark.parametrize("name", METHODS)
def test_every_tensor_equals_its_dequantized_codes(name: str, tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS[name])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.is_quantized
    source = checkpoint.tensors
    assert PartTensors(source, str).is_quantized()
    assert source.shapes() == {tensor: tuple(value.shape) for tensor, value in expected.items()}
    for tensor, value in expected.items():
        read = source.read(tensor, 0, value.shape[0])
        torch.testing.assert_close(read, value, rtol=1e-6, atol=1e-7, msg=tensor)
    for start, stop in ((0, 1), (5, 19), (33, 64)):
        part = source.read(DOWN, start, stop)
        torch.testing.assert_close(part, expected[DOWN][start:stop], rtol=1e-6, atol=1e-7)
    columns = source.read(DOWN, 7, 40, axis=1)
    torch.testing.assert_close(columns, expected[DOWN][:, 7:40], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_codes_are_available_if_kernels_support_them(name: str, tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS[name])
    source = open_checkpoint(tmp_path).tensors
    assert isinstance(source, Coded)
    result = source.code_format(DOWN)
    assert result == KEPT.get(name)
    assert source.code_format("model.norm.weight") is None
    if result is None:
        return
    codes = source.codes(DOWN, 5, 21)
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
    assert weights.code_format(qkv) == KEPT[name]
    parts = [expected[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    rows = torch.cat(parts)
    codes = weights.codes(qkv, 50, 110)
    groups = torch.arange(64) // GROUP
    values = (codes.values.float() - codes.zeros.float()[:, groups]) * codes.scales[:, groups]
    torch.testing.assert_close(values, rows[50:110])
    assert weights.code_format("embedding.weight") is None


def test_a_config_alone_does_not_make_weights_quantized(tmp_path: Path) -> None:
    reference_model(WIDE).save_pretrained(tmp_path)
    reconfigure(tmp_path, quantization_config={"quant_method": "fp8"})
    assert not open_checkpoint(tmp_path).is_quantized


def test_a_packed_model_equals_its_dequantized_one(tmp_path: Path) -> None:
    expected = write_packed(tmp_path, METHODS["awq"])
    packed = load(tmp_path)
    reconfigure(tmp_path, quantization_config=None)
    save_file({k: v.contiguous() for k, v in expected.items()}, tmp_path / "model.safetensors")
    plain = load(tmp_path)
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        torch.testing.assert_close(packed(ids), plain(ids))


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


def test_mxfp4_experts_follow_the_published_format(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(110, 140, (3, 10, 2), dtype=torch.uint8, generator=generator)
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    file = tmp_path / "model.safetensors"
    save_file({f"{stem}_blocks": blocks, f"{stem}_scales": scales}, file)
    source = Unpacked(Safetensors([file]), {"quant_method": "mxfp4"})
    assert source.shapes() == {stem: (3, 64, 10)}

    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    expected = torch.empty(3, 64, 10)
    for expert in range(3):
        for row in range(10):
            for column in range(64):
                byte = int(blocks[expert, row, column // 32, column % 32 // 2])
                code = byte >> 4 if column % 2 else byte & 15
                value = table[code & 7] * (-1 if code & 8 else 1)
                expected[expert, column, row] = value * 2.0 ** (
                    int(scales[expert, row, column // 32]) - 127
                )
    assert torch.equal(source.read(stem, 0, 3), expected)
    assert torch.equal(source.read(stem, 1, 2), expected[1:2])
    assert torch.equal(dequantize_mxfp4(blocks, scales).mT, expected)


def test_unsigned_scales_are_exponents(tmp_path: Path) -> None:
    values = torch.randn(8, 64).to(torch.float8_e4m3fn)
    scales = torch.randint(120, 130, (8, 2), dtype=torch.uint8)
    file = tmp_path / "model.safetensors"
    save_file({"a.weight": values, "a.weight_scale_inv": scales}, file)
    source = Unpacked(Safetensors([file]), {"quant_method": "fp8", "weight_block_size": [1, 32]})
    factors = torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    assert torch.equal(source.read("a.weight", 0, 8), values.float() * factors)


def test_an_mxfp4_mixture_equals_its_dequantized_one(tmp_path: Path) -> None:
    reference, ids = save_gpt_oss(tmp_path), random_text(20)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(reference, ids))


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        *(
            ("gptq-4", {"quant_method": name}, f"quant_method .*gptq, awq, .*{name}")
            for name in ("hqq", "quanto", "torchao", "modelopt", "nvfp4", "auto-round", None)
        ),
        ("gptq-4", {"bits": 3}, "bits .*2, 4, 8 .*3"),
        ("gptq-4", {"checkpoint_format": "marlin"}, "gptq_v2 .*'marlin'"),
        ("awq", {"version": "gemv"}, "gemm .*'gemv'"),
        ("gptq-4", {"group_size": 64}, r"qzeros .*\(2, 8\) .*\(3, 8\)"),
        ("gptq-4", {"group_size": None}, "group_size .*None"),
        ("gptq-4", {"bits": 8}, "qzeros"),
        ("gptq-4", {"sym": True}, "down_proj.* zero points .*middle code 8"),
        ("gptq-4-symmetric", {"checkpoint_format": "gptq_v2"}, "zero points"),
        ("gptq-ordered", {"desc_act": False}, "g_idx .*no activation order"),
        ("gptq-without-index", {"desc_act": True}, "g_idx is missing"),
        ("gptq-4", {"adapter": {"rank": 8}}, "adapter"),
        ("gptq-dynamic", {"dynamic": {}}, "shape"),
        ("gptq-dynamic", {"dynamic": {"[": {}}}, "regular expressions"),
        ("awq", {"backend": "llm-awq"}, "backend"),
        ("awq", {"zero_point": False}, "zero points"),
        ("awq", {"group_size": 16}, "qzeros"),
        ("compressed-4", {"config_groups": {}}, "config_groups"),
        ("compressed-4", {"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16"),
        ("compressed-4", {"config_groups": {"group_0": {"weights": []}}}, "config_groups.group_0"),
        ("compressed-4", {"format": "marlin-24"}, "format .*'marlin-24'"),
        ("compressed-4", {"format": "nvfp4-pack-quantized"}, "format"),
        ("compressed-4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ("compressed-4", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        ("compressed-groups", {"config_groups": both("re:.*down.*")}, "down_proj .*one group"),
        ("compressed-groups", {"config_groups": both("other")}, "k_proj .*one group"),
        ("compressed-groups", {"config_groups": both("re:other")}, "down_proj.*int8"),
        ("fp8-blocks", {"weight_block_size": [16, 32]}, "weight_block_size of .*down_proj"),
        ("fp8-blocks", {"weight_block_size": None}, "weight_block_size of .*down_proj"),
        ("fp8-blocks", {"weight_block_size": 16}, "two positive integers"),
    ],
)
def test_an_unknown_method_is_refused(
    name: str, change: dict[str, Any], error: str, tmp_path: Path
) -> None:
    write_packed(tmp_path, METHODS[name])
    reconfigure(tmp_path, quantization_config=METHODS[name].config | change)
    message = refused(tmp_path)
    assert re.search(error, message)
    assert message.endswith(("was quantized from.", "is incomplete."))


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("compressed-4", {"num_bits": 8}, "weight_packed .*shape"),
        ("compressed-4", {"num_bits": 3}, "num_bits .*2, 4, 8"),
        ("compressed-4", {"type": "float"}, "type .*'float'"),
        ("compressed-4", {"group_size": 16}, "weight_scale .*shape"),
        ("compressed-4", {"group_size": 0}, "group_size"),
        ("compressed-4", {"strategy": "channel"}, "weight_scale .*shape"),
        ("compressed-4", {"strategy": "tensor_group"}, "strategy"),
        ("compressed-4", {"symmetric": False}, "weight_zero_point is missing"),
        ("compressed-4-signed-zeros", {"symmetric": True}, "zero points .*middle"),
        ("compressed-ordered", {"actorder": "weight"}, "weight_g_idx .*order"),
        ("compressed-4", {"actorder": "group"}, "weight_g_idx is missing"),
        ("int8-channel", {"num_bits": 9}, "num_bits"),
        ("int8-channel", {"type": "float"}, "float8_e4m3fn .*int8"),
        ("int8-channel-asymmetric", {"symmetric": True}, "weight_zero_point .*0"),
        ("int8-channel", {"strategy": "tensor"}, "weight_scale .*shape"),
        ("fp8-block-48x32", {"block_structure": [32, 48]}, "weight_scale .*shape"),
        ("fp8-block-48x32", {"block_structure": "48"}, "block_structure"),
    ],
)
def test_a_scheme_that_contradicts_the_tensors_is_refused(
    name: str, change: dict[str, Any], error: str, tmp_path: Path
) -> None:
    config = METHODS[name].config
    scheme = config["config_groups"]["group_0"]["weights"] | change
    write_packed(tmp_path, METHODS[name])
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    reconfigure(tmp_path, quantization_config=config | {"config_groups": groups})
    assert re.search(error, refused(tmp_path))


@pytest.mark.parametrize(
    ("name", "part", "change", "error"),
    [
        ("gptq-4", "qweight", lambda t: t.long(), "torch.int32"),
        ("gptq-4", "scales", lambda t: t[:, :8], "shape"),
        ("gptq-4", "g_idx", lambda t: t + 1, "from 0 to 1"),
        ("gptq-4", "g_idx", lambda t: t[:-1], "shape"),
        ("gptq-4-symmetric", "qzeros", last_changed, "zero points"),
        ("compressed-4-stored-middle", "weight_zero_point", last_changed, "zero points"),
        ("int8-channel-asymmetric", "weight_zero_point", lambda t: t[:3], "shape"),
        ("compressed-4", "weight_shape", lambda t: t + 64, "shape"),
        ("compressed-4", "weight_shape", lambda t: t * 0, "a matrix"),
        ("compressed-4", "weight_shape", lambda t: t.float(), "a matrix"),
        ("nf4", "weight.absmax", lambda t: t[:-1], "shape"),
        ("bitsandbytes-8", "weight_format", lambda t: t + 2, "weight_format"),
        ("bitsandbytes-8", "weight", lambda t: t.view(torch.uint8), "torch.int8"),
    ],
)
def test_a_tensor_that_contradicts_the_config_is_refused(
    name: str, part: str, change: Callable[[Tensor], Tensor], error: str, tmp_path: Path
) -> None:
    write_packed(tmp_path, METHODS[name])
    tensor = f"model.layers.1.mlp.up_proj.{part}"
    edit(tmp_path, lambda tensors: tensors.update({tensor: change(tensors[tensor])}))
    message = refused(tmp_path)
    assert "model.layers.1.mlp.up_proj." in message
    assert re.search(error, message)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gptq-4", "qzeros"),
        ("gptq-4", "scales"),
        ("awq", "scales"),
        ("compressed-4", "weight_scale"),
        ("compressed-4", "weight_shape"),
        ("nf4", "weight.absmax"),
        ("nf4", "weight.quant_map"),
    ],
)
def test_an_absent_part_is_named(name: str, part: str, tmp_path: Path) -> None:
    write_packed(tmp_path, METHODS[name])
    reshape(tmp_path, {f"model.layers.0.mlp.up_proj.{part}": None})
    message = refused(tmp_path)
    assert f"model.layers.0.mlp.up_proj.{part}" in message
    assert "The download is incomplete" in message


@pytest.mark.parametrize(
    ("method", "dtype"), [("fp8-tensor", torch.int8), ("int8-channel", torch.uint8)]
)
def test_other_dtypes_are_refused(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.ones(4, 4).to(dtype), "a.weight_scale": torch.ones(4, 1)}, file)
    with pytest.raises(CheckpointError, match=rf"a.weight .*{dtype}"):
        Unpacked(Safetensors([file]), METHODS[method].config)


def test_codes_without_a_quantization_config_are_unexpected(tmp_path: Path) -> None:
    write_packed(tmp_path, METHODS["gptq-4"])
    reconfigure(tmp_path, quantization_config=None)
    with pytest.raises(WeightError, match=r"unexpected model.layers.0.mlp.down_proj.qweight"):
        load(tmp_path)
