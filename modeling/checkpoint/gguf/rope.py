"""Rotary positions of a GGUF file as a config of Hugging Face has them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.gguf.header import Header, Value
from ortolan.modeling.checkpoint.gguf.tensors import FACTOR_TENSORS, read_stored
from ortolan.modeling.errors import CheckpointError

FACTORS, LONG, SHORT = FACTOR_TENSORS

LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of all models of Llama 3.1 to 3.3; a file has only the factors that follow from them."""


def rope_values(header: Header, own: Mapping[str, Value], *, partial: str) -> dict[str, object]:
    """The keys about rotary positions.

    Args:
        header: of the file.
        own: values below the architecture's name.
        partial: key for the share of a head that is rotated.

    Raises:
        CheckpointError: a scaling that Ortolan cannot express.
    """
    values: dict[str, object] = {}
    heads, width = own.get("attention.head_count"), own.get("embedding_length")
    rotated = own.get("rope.dimension_count")
    if isinstance(rotated, int) and isinstance(heads, int) and isinstance(width, int) and heads:
        head_dim = own.get("attention.key_length", width // heads)
        if isinstance(head_dim, int) and rotated != head_dim:
            values[partial] = rotated / head_dim
    scaling = _scaling(header, own)
    if scaling is not None:
        values["rope_scaling"] = scaling
        if "original_max_position_embeddings" in scaling and scaling["rope_type"] == "longrope":
            original = scaling["original_max_position_embeddings"]
            values["original_max_position_embeddings"] = original
    return values


def _scaling(header: Header, own: Mapping[str, Value]) -> dict[str, object] | None:
    given = {
        key.removeprefix("rope.scaling."): value
        for key, value in own.items()
        if key.startswith("rope.scaling.")
    }
    kind = given.pop("type", "none")
    original = given.pop("original_context_length", None)
    if FACTORS in header.tensors:
        return _llama3(header, own)
    if LONG in header.tensors:
        attention = given.pop("attn_factor", None)
        return {
            "rope_type": "longrope",
            "long_factor": read_stored(header, LONG).tolist(),
            "short_factor": read_stored(header, SHORT).tolist(),
            "original_max_position_embeddings": original,
            **({} if attention is None else {"attention_factor": attention}),
            **given,
        }
    if kind == "none":
        return None
    renamed = {"finetuned": None, "attn_factor": "attention_factor"} | {
        f"yarn_{name}": name for name in ("beta_fast", "beta_slow")
    }
    kept = {renamed.get(key, key): value for key, value in given.items()}
    kept.pop(None, None)
    before = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": kind, **{str(key): value for key, value in kept.items()}, **before}


def _llama3(header: Header, own: Mapping[str, Value]) -> dict[str, object]:
    """The parameters from which the factors of the frequencies follow."""
    factors = read_stored(header, FACTORS)
    factor = round(float(factors.max()), 4)
    theta = own.get("rope.freq_base", 10_000.0)
    theta = float(theta) if isinstance(theta, int | float) else 10_000.0
    if not torch.allclose(_llama3_factors(len(factors), theta, factor), factors, rtol=1e-4):
        raise CheckpointError(
            f"{header.path}: expected factors of the frequencies as Llama 3 has them, got others. "
            "Export the checkpoint that the file was made from."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _llama3_factors(count: int, theta: float, factor: float) -> Tensor:
    """What each of `count` frequencies is divided by.

    Source: Llama 3.1 (Meta 2024): long waves are stretched, short ones kept, others in part.
    """
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    turns = LLAMA3["original_max_position_embeddings"] / (
        2 * torch.pi * theta ** (torch.arange(count, dtype=torch.float64) / count)
    )
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / (share + (1 - share) / factor)).float()
