"""Checkpoints quantized by every method, in the published layouts.

A writer packs a matrix `(N, K)` and returns the stored tensors and the dequantized matrix, which
NumPy computes from the codes before they are packed.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.formats import reconfigure
from tests.modeling.tiny_models import LLAMA, reference_model
from torch import Tensor

Array = NDArray[Any]

GROUP = 32

WIDE = LLAMA | {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 128}

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class Packed(NamedTuple):
    """Stored tensors of a matrix by the suffixes of their names, and the dequantized matrix."""

    stored: dict[str, Tensor]
    dequantized: Tensor


Pack = Callable[[Tensor], Packed]


class Method(NamedTuple):
    """A quantization method: its writer and its `quantization_config`.

    Attributes:
        pack: writes a matrix.
        config: the config.
        others: other writers, by a part of the layer's name.
    """

    pack: Pack
    config: dict[str, Any]
    others: Mapping[str, Pack] = MappingProxyType({})


def words(codes: Array, bits: int) -> Tensor:
    """Pack codes along the last axis into 32-bit words, the first into the lowest bits."""
    share = 32 // bits
    wide = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, share)
    shifted = wide << np.arange(0, 32, bits, dtype=np.uint64)
    return torch.from_numpy(shifted.sum(-1).astype(np.uint32).view(np.int32))


def by_group(weight: Array, size: int | None) -> Array:
    """A matrix in groups of inputs, `(N, G, size)`, the last one filled up with zeros."""
    rows, columns = weight.shape
    size = size or columns
    return np.pad(weight, ((0, 0), (0, -columns % size))).reshape(rows, -1, size)


def rounded(
    weight: Tensor, bits: int, *, symmetric: bool, size: int | None = GROUP
) -> tuple[Array, Array, Array]:
    """Codes `(N, K)`, scales and zeros `(N, G)` of a weight."""
    blocks = by_group(weight.double().numpy(), size)
    largest = 2**bits - 1
    if symmetric:
        scales = np.abs(blocks).max(-1) / (largest // 2)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
        scales = (high - low) / largest
        zeros = np.round(-low / scales).clip(1, largest).astype(int)
    scales = scales.astype(np.float16)
    codes = np.round(blocks / scales[..., None].astype(float)) + zeros[..., None]
    codes = codes.clip(0, largest).reshape(len(weight), -1)[:, : weight.shape[1]]
    return codes.astype(int), scales, zeros


def dequantized(codes: Array, scales: Array, zeros: Array, groups: Array) -> Tensor:
    """Dequantized codes."""
    values = (codes - zeros[:, groups]) * scales[:, groups].astype(np.float64)
    return torch.from_numpy(values.astype(np.float32))


def in_order(columns: int, size: int | None) -> Array:
    return np.arange(columns) // (size or columns)


def gptq(
    bits: int,
    *,
    symmetric: bool,
    version: str = "gptq",
    ordered: bool = False,
    size: int | None = GROUP,
    indexed: bool = True,
    **config: Any,
) -> Method:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, bits, symmetric=symmetric, size=size)
        groups = in_order(codes.shape[1], size)
        if ordered:
            groups = np.random.default_rng(0).permutation(groups)
        stored = {
            "qweight": words(codes, bits).mT,
            "qzeros": words((zeros - (version == "gptq")).T, bits),
            "scales": torch.from_numpy(scales.T),
        }
        index = {"g_idx": torch.from_numpy(groups.astype(np.int32))} if indexed else {}
        return Packed(stored | index, dequantized(codes, scales, zeros, groups))

    base = {"quant_method": "gptq", "bits": bits, "group_size": size or -1, "desc_act": ordered}
    version_of = {} if version == "gptq" else {"checkpoint_format": version}
    return Method(pack, base | version_of | config)


def awq(*, symmetric: bool = False, size: int | None = GROUP, **config: Any) -> Method:
    def interleaved(codes: Array) -> Tensor:
        return words(codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].reshape(len(codes), -1), 4)

    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, 4, symmetric=symmetric, size=size)
        stored = {
            "qweight": interleaved(codes.T),
            "qzeros": interleaved(zeros.T),
            "scales": torch.from_numpy(scales.T),
        }
        groups = in_order(codes.shape[1], size)
        return Packed(stored, dequantized(codes, scales, zeros, groups))

    base = {"quant_method": "awq", "bits": 4, "group_size": size or -1, "version": "gemm"}
    return Method(pack, base | config)


def compressed_config(name: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    config = {"config_groups": {"group_0": group}, "format": name}
    return {"quant_method": "compressed-tensors", **config}


def compressed(
    bits: int,
    *,
    symmetric: bool,
    size: int | None = GROUP,
    signed: bool = False,
    index: str | None = None,
    **more: Any,
) -> Method:
    """Packed integers.

    Args:
        bits: bits per code.
        symmetric: without zeros.
        size: inputs per group; None for a scale per row.
        signed: zeros are stored as signed numbers, one in a byte.
        index: stores the group of each input: `reversed`, or -1 if `unset`.
        more: further values of the config's weights.
    """

    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, bits, symmetric=symmetric, size=size)
        padding = -codes.shape[1] % (32 // bits)
        groups = in_order(codes.shape[1], size)
        stored = {
            "weight_packed": words(np.pad(codes, ((0, 0), (0, padding))), bits),
            "weight_scale": torch.from_numpy(scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if signed:
            stored["weight_zero_point"] = torch.from_numpy(zeros - 2 ** (bits - 1)).to(torch.int8)
        elif not symmetric:
            stored["weight_zero_point"] = words(zeros.T, bits).mT
        if index == "reversed":
            groups = groups[::-1].copy()
        if index is not None:
            of_inputs = np.full(len(groups), -1) if index == "unset" else groups
            stored["weight_g_idx"] = torch.from_numpy(of_inputs.astype(np.int32))
        return Packed(stored, dequantized(codes, scales, zeros, groups))

    strategy = {"strategy": "channel"} if size is None else {"strategy": "group"}
    weights = {"num_bits": bits, "group_size": size, "symmetric": symmetric, "type": "int"}
    return Method(pack, compressed_config("pack-quantized", **weights, **strategy, **more))


def plain(
    name: str,
    dtype: torch.dtype,
    block: tuple[int | None, int | None],
    *,
    scale: str = "weight_scale",
    shape: tuple[int, ...] | None = None,
    shifted: bool = False,
    exponents: bool = False,
    **weights: Any,
) -> Method:
    """8-bit numbers with a scale per block, not packed.

    Args:
        name: `fp8`, or a format of compressed-tensors.
        dtype: type of the numbers.
        block: rows and columns that share a scale; None for all.
        scale: name of the scales.
        shape: shape of the scales as stored; None for two axes.
        shifted: with zeros.
        exponents: scales are exponents of 2.
        weights: further values of the config.
    """

    def pack(weight: Tensor) -> Packed:
        high, wide = (size or whole for size, whole in zip(block, weight.shape, strict=True))
        grid = -(-weight.shape[0] // high), -(-weight.shape[1] // wide)
        generator = torch.Generator().manual_seed(weight.shape[1])
        powers = torch.randint(-9, -6, grid, generator=generator)
        scales = torch.exp2(powers.float())
        zeros = torch.randint(-9, 9, grid, generator=generator) * shifted

        def spread(numbers: Tensor) -> Tensor:
            rows = numbers.float().repeat_interleave(high, 0)[: weight.shape[0]]
            return rows.repeat_interleave(wide, 1)[:, : weight.shape[1]]

        values = weight / spread(scales) + spread(zeros)
        if dtype == torch.int8:
            values = values.round().clamp(-128, 127)
        values = values.clamp(-448, 448).to(dtype)
        stored_scales = (powers + 127).to(torch.uint8) if exponents else scales
        stored = {"weight": values, scale: stored_scales.reshape(shape or grid)}
        if shifted:
            stored["weight_zero_point"] = zeros.to(dtype)
        return Packed(stored, (values.float() - spread(zeros)) * spread(scales))

    if name == "fp8":
        return Method(pack, {"quant_method": "fp8", **weights})
    weights = {"num_bits": 8, "type": "int" if dtype == torch.int8 else "float", **weights}
    return Method(pack, compressed_config(name, symmetric=not shifted, **weights))


def eight_bits() -> Method:
    """8-bit integers of bitsandbytes."""

    def pack(weight: Tensor) -> Packed:
        largest = weight.abs().amax(1)
        codes = (weight / largest[:, None] * 127).round().to(torch.int8)
        stored = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0).byte()}
        return Packed(stored, codes * largest[:, None] / 127)

    return Method(pack, {"quant_method": "bitsandbytes", "load_in_8bit": True})


def nf4(*, nested: bool, storage: torch.dtype = torch.uint8, kind: str = "nf4") -> Method:
    table = torch.linspace(-1, 1, 16) ** 3
    size, group = 64, 4

    def pack(weight: Tensor) -> Packed:
        blocks = weight.reshape(-1, size)
        largest = blocks.abs().amax(1)
        codes = ((blocks / largest[:, None])[..., None] - table).abs().argmin(-1).flatten()
        stored = {
            "weight": (codes[0::2] * 16 + codes[1::2]).to(torch.uint8).view(storage)[:, None],
            "weight.quant_map": table,
        }
        state: dict[str, Any] = {"blocksize": size, "dtype": "float32", "shape": [*weight.shape]}
        if nested:
            levels = torch.linspace(-1, 1, 256)
            offset = float(largest.mean())
            outer = torch.stack([p.abs().max() for p in torch.split(largest - offset, group)])
            factors = outer.repeat_interleave(group)[: len(largest)]
            inner = (((largest - offset) / factors)[:, None] - levels).abs().argmin(1)
            largest = levels[inner] * factors + offset
            stored["weight.absmax"] = inner.to(torch.uint8)
            stored |= {"weight.nested_absmax": outer, "weight.nested_quant_map": levels}
            state |= {"nested_blocksize": group, "nested_offset": offset}
        else:
            stored["weight.absmax"] = largest
        bytes_of_state = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        stored[f"weight.quant_state.bitsandbytes__{kind}"] = bytes_of_state
        values = table[codes].view(-1, size) * largest[:, None]
        return Packed(stored, values.view(weight.shape))

    return Method(pack, {"quant_method": "bitsandbytes", "load_in_4bit": True})


INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2

WIDER = gptq(8, symmetric=True, size=16)

BOTH: dict[str, Any] = {
    "config_groups": {
        "attention": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "strategy": "channel", "type": "int"},
        },
        "mlp": {
            "targets": [r"re:.*\.mlp\..*"],
            "weights": {"num_bits": 4, "group_size": GROUP, "symmetric": False},
        },
        "down": {
            "targets": [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)],
            "weights": {"type": "float", "strategy": "block", "block_structure": "48x32"},
        },
    }
}
METHODS: dict[str, Method] = {
    "gptq-4": gptq(4, symmetric=False),
    "gptq-4-symmetric": gptq(4, symmetric=True, sym=True),
    "gptq-8": gptq(8, symmetric=True),
    "gptq-2": gptq(2, symmetric=False),
    "gptq-v2": gptq(4, symmetric=False, version="gptq_v2"),
    "gptq-v2-symmetric": gptq(4, symmetric=True, version="gptq_v2", sym=True),
    "gptq-ordered": gptq(4, symmetric=False, ordered=True),
    "gptq-all-inputs": gptq(4, symmetric=False, size=None),
    "gptq-short-last-group": gptq(4, symmetric=False, size=64, indexed=False),
    "gptq-without-index": gptq(4, symmetric=False, indexed=False),
    "gptq-dynamic": gptq(
        4,
        symmetric=False,
        dynamic={"-:.*lm_head": {}, r"+:.*\.mlp\..*": {"bits": 8, "group_size": 16, "sym": True}},
    )._replace(others={".mlp.": WIDER.pack}),
    "awq": awq(),
    "awq-all-inputs": awq(size=None),
    "awq-short-groups": awq(size=16),
    "awq-symmetric": awq(symmetric=True, zero_point=False),
    "compressed-4": compressed(4, symmetric=True),
    "compressed-4-asymmetric": compressed(4, symmetric=False),
    "compressed-4-signed-zeros": compressed(4, symmetric=False, signed=True),
    "compressed-8-signed-zeros": compressed(8, symmetric=False, signed=True),
    "compressed-4-stored-middle": compressed(4, symmetric=True, signed=True),
    "compressed-4-channel": compressed(4, symmetric=True, size=None),
    "compressed-4-channel-asymmetric": compressed(4, symmetric=False, size=None),
    "compressed-2": compressed(2, symmetric=False),
    "compressed-8": compressed(8, symmetric=True),
    "compressed-ordered": compressed(4, symmetric=False, index="reversed", actorder="group"),
    "compressed-unset-order": compressed(4, symmetric=True, index="unset", actorder="weight"),
    "compressed-groups": Method(
        plain("int-quantized", INT8, (1, None)).pack,
        {"quant_method": "compressed-tensors", "format": "mixed-precision", **BOTH},
        {
            "down_proj": plain("float-quantized", E4M3, (48, 32)).pack,
            ".mlp.": compressed(4, symmetric=False).pack,
        },
    ),
    "int8-channel": plain("int-quantized", INT8, (1, None), strategy="channel"),
    "int8-channel-asymmetric": plain(
        "int-quantized", INT8, (1, None), shifted=True, strategy="channel"
    ),
    "int8-group": plain("int-quantized", INT8, (1, 32), strategy="group", group_size=32),
    "int8-tensor": plain("int-quantized", INT8, (None, None), shape=(1,), strategy="tensor"),
    "int8-vector": plain("int-quantized", INT8, (1, None), shape=(-1,), strategy="channel"),
    "fp8-block-48x32": plain(
        "float-quantized", E4M3, (48, 32), strategy="block", block_structure=[48, 32]
    ),
    "fp8-channel": plain("float-quantized", E4M3, (1, None), strategy="channel"),
    "mxfp8": plain(
        "mxfp8-quantized", E4M3, (1, 32), exponents=True, strategy="group", group_size=32
    ),
    "fp8-blocks": plain(
        "fp8", E4M3, (16, 16), scale="weight_scale_inv", weight_block_size=[16, 16]
    ),
    "fp8-blocks-24x40": plain(
        "fp8", E4M3, (24, 40), scale="weight_scale_inv", weight_block_size=[24, 40]
    ),
    "fp8-default-blocks": plain("fp8", E4M3, (128, 128), scale="weight_scale_inv"),
    "fp8-rows": plain("fp8", E5M2, (1, None), weight_block_size=None),
    "fp8-tensor": plain(
        "fp8", E4M3, (None, None), scale="weight_scale_inv", shape=(), weight_block_size=None
    ),
    "nf4": nf4(nested=False),
    "nf4-nested": nf4(nested=True),
    "nf4-bf16-storage": nf4(nested=True, storage=torch.bfloat16),
    "fp4": nf4(nested=False, kind="fp4"),
    "bitsandbytes-8": eight_bits(),
}


def write_packed(folder: Path, method: Method) -> dict[str, Tensor]:
    """Write a tiny model with packed layers; return the dequantized tensors by name."""
    tensors, config = saved_model()
    stored: dict[str, Tensor] = {}
    stands_for: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stands_for[name] = tensor
        if tensor.dim() == 2 and ".layers." in name:
            pack = next((p for part, p in method.others.items() if part in name), method.pack)
            packed = pack(tensor)
            stem = name.removesuffix("weight")
            stored |= {
                f"{stem}{part}": value.clone().contiguous() for part, value in packed.stored.items()
            }
            stands_for[name] = packed.dequantized
        else:
            stored[name] = tensor
    folder.mkdir(exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(config)
    reconfigure(folder, quantization_config=method.config)
    return stands_for


@cache
def saved_model() -> tuple[dict[str, Tensor], str]:
    """Tensors and config.json of a tiny model, as transformers saves them."""
    with TemporaryDirectory() as folder:
        reference_model(WIDE).save_pretrained(folder)
        config = Path(folder, "config.json").read_text()
        return load_file(Path(folder, "model.safetensors")), config
