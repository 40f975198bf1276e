"""Tiny checkpoints of gpt-oss with experts in MXFP4, as published."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.formats import reconfigure
from tests.modeling.tiny_models import reference_model
from tests.tiny.mixtures import GPT_OSS
from torch import Tensor
from transformers import PreTrainedModel

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def packed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks and scales of experts `(N, K, R)`, and the decoded experts."""
    by_row = torch.unflatten(weight.mT, -1, (-1, 32))
    exponents = (by_row.abs().amax(-1) / 6).log2().ceil()
    steps = by_row / torch.exp2(exponents)[..., None]
    codes = (steps.abs()[..., None] - VALUES).abs().argmin(-1)
    stand_for = VALUES[codes] * steps.sign() * torch.exp2(exponents)[..., None]
    codes = codes + 8 * (steps < 0)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, (exponents + 127).to(torch.uint8), stand_for.flatten(-2).mT.contiguous()


def save_gpt_oss(folder: Path) -> PreTrainedModel:
    """Writes a tiny checkpoint and returns the transformers model with the decoded experts."""
    reference = reference_model(GPT_OSS)
    reference.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj")]:
        blocks, scales, stand_for = packed(tensors.pop(name))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        reference.get_parameter(name).data = stand_for
    save_file(tensors, folder / "model.safetensors")
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    reconfigure(folder, quantization_config=quantization)
    return reference
