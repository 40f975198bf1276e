"""Checkpoints quantized by every method, in the published layouts.

A writer packs a matrix `(N, K)` and returns the stored tensors and the dequantized matrix, which
NumPy computes from the codes before they are packed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.refusals import reconfigure
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


class Method(NamedTuple):
    """A quantization method: its writer and its `quantization_config`."""

    pack: Callable[[Tensor], Packed]
    config: dict[str, Any]


def words(codes: Array, bits: int) -> Tensor:
    """Pack codes along the last axis into 32-bit words, the first into the lowest bits."""
    share = 32 // bits
    wide = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, share)
    shifted = wide << np.arange(0, 32, bits, dtype=np.uint64)
    return torch.from_numpy(shifted.sum(-1).astype(np.uint32).view(np.int32))


def rounded(weight: Tensor, bits: int, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Codes `(N, K)`, scales and zeros `(N, G)` of a weight."""
    blocks = weight.double().numpy().reshape(len(weight), -1, GROUP)
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
    return codes.clip(0, largest).reshape(len(weight), -1).astype(int), scales, zeros


def dequantized(codes: Array, scales: Array, zeros: Array, groups: Array) -> Tensor:
    """Dequantized codes."""
    values = (codes - zeros[:, groups]) * scales[:, groups].astype(np.float64)
    return torch.from_numpy(values.astype(np.float32))


def gptq(bits: int, *, symmetric: bool, version: str = "gptq", ordered: bool = False) -> Method:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, bits, symmetric=symmetric)
        groups = np.arange(codes.shape[1]) // GROUP
        if ordered:
            groups = np.random.default_rng(0).permutation(groups)
        stored = {
            "qweight": words(codes, bits).mT,
            "qzeros": words((zeros - (version == "gptq")).T, bits),
            "scales": torch.from_numpy(scales.T),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
        return Packed(stored, dequantized(codes, scales, zeros, groups))

    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": ordered}
    return Method(pack, config | ({} if version == "gptq" else {"checkpoint_format": version}))


def awq() -> Method:
    def interleaved(codes: Array) -> Tensor:
        return words(codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].reshape(len(codes), -1), 4)

    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, 4, symmetric=False)
        stored = {
            "qweight": interleaved(codes.T),
            "qzeros": interleaved(zeros.T),
            "scales": torch.from_numpy(scales.T),
        }
        return Packed(stored, dequantized(codes, scales, zeros, np.arange(codes.shape[1]) // GROUP))

    return Method(pack, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"})


def compressed(bits: int, *, symmetric: bool) -> Method:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros = rounded(weight, bits, symmetric=symmetric)
        stored = {
            "weight_packed": words(codes, bits),
            "weight_scale": torch.from_numpy(scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = words(zeros.T, bits).mT
        return Packed(stored, dequantized(codes, scales, zeros, np.arange(codes.shape[1]) // GROUP))

    weights = {"num_bits": bits, "group_size": GROUP, "strategy": "group", "symmetric": symmetric}
    config = {"config_groups": {"group_0": {"weights": weights}}, "format": "pack-quantized"}
    return Method(pack, {"quant_method": "compressed-tensors", **config})


def integers_by_row() -> Method:
    def pack(weight: Tensor) -> Packed:
        scales = weight.abs().amax(1, keepdim=True) / 127
        codes = (weight / scales).round()
        stored = {"weight": codes.to(torch.int8), "weight_scale": scales}
        return Packed(stored, codes * scales)

    weights = {"num_bits": 8, "strategy": "channel", "symmetric": True}
    config = {"config_groups": {"group_0": {"weights": weights}}, "format": "int-quantized"}
    return Method(pack, {"quant_method": "compressed-tensors", **config})


def fp8(block: int | None) -> Method:
    def pack(weight: Tensor) -> Packed:
        rows, columns = weight.shape
        if block is None:
            scales, factors = torch.tensor(0.013), torch.full(weight.shape, 0.013)
        else:
            scales = torch.rand(-(-rows // block), -(-columns // block)) + 0.5
            factors = scales.repeat_interleave(block, 0)[:rows]
            factors = factors.repeat_interleave(block, 1)[:, :columns]
        values = (weight / factors).to(torch.float8_e4m3fn)
        more = {} if block else {"activation_scale": torch.tensor(1.0)}
        stored = {"weight": values, "weight_scale_inv": scales, **more}
        return Packed(stored, values.float() * factors)

    size = None if block is None else [block, block]
    return Method(pack, {"quant_method": "fp8", "weight_block_size": size})


def nf4(*, nested: bool) -> Method:
    table = torch.linspace(-1, 1, 16) ** 3
    size, group = 64, 4

    def pack(weight: Tensor) -> Packed:
        blocks = weight.reshape(-1, size)
        largest = blocks.abs().amax(1)
        codes = ((blocks / largest[:, None])[..., None] - table).abs().argmin(-1).flatten()
        stored = {
            "weight": (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)[:, None],
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
        stored["weight.quant_state.bitsandbytes__nf4"] = bytes_of_state
        values = table[codes].view(-1, size) * largest[:, None]
        return Packed(stored, values.view(weight.shape))

    return Method(pack, {"quant_method": "bitsandbytes", "load_in_4bit": True})


METHODS: dict[str, Method] = {
    "gptq-4": gptq(4, symmetric=False),
    "gptq-4-symmetric": gptq(4, symmetric=True),
    "gptq-8": gptq(8, symmetric=True),
    "gptq-2": gptq(2, symmetric=False),
    "gptq-v2": gptq(4, symmetric=False, version="gptq_v2"),
    "gptq-ordered": gptq(4, symmetric=False, ordered=True),
    "awq": awq(),
    "compressed-4": compressed(4, symmetric=True),
    "compressed-4-asymmetric": compressed(4, symmetric=False),
    "compressed-8": compressed(8, symmetric=True),
    "compressed-rows": integers_by_row(),
    "fp8-blocks": fp8(16),
    "fp8-tensor": fp8(None),
    "nf4": nf4(nested=False),
    "nf4-nested": nf4(nested=True),
}


def write_packed(folder: Path, method: Method, values: dict[str, Any] = WIDE) -> dict[str, Tensor]:
    """Write a tiny model with packed layers; return the dequantized tensors by name."""
    reference_model(values).save_pretrained(folder)
    file = folder / "model.safetensors"
    stored: dict[str, Tensor] = {}
    stands_for: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        stands_for[name] = tensor
        if tensor.dim() == 2 and ".layers." in name:
            packed = method.pack(tensor)
            stem = name.removesuffix("weight")
            stored |= {
                f"{stem}{part}": value.clone().contiguous() for part, value in packed.stored.items()
            }
            stands_for[name] = packed.dequantized
        else:
            stored[name] = tensor
    save_file(stored, file, metadata={"format": "pt"})
    reconfigure(folder, quantization_config=method.config)
    return stands_for
