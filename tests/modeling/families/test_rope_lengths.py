"""Every scaling of rotary positions against transformers, for texts on both sides of its length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import (
    LLAMA,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.tiny.modern import DEEPSEEK_V3

from ortolan.modeling import load
from ortolan.modeling.checkpoint.folder import config_from_hf

ORIGINAL, LONGEST = 32, 96

LENGTHS = (20, ORIGINAL, ORIGINAL + 1, 80)
"""Short, the longest of the original context, the shortest after it, and long."""

TRAINED = {"original_max_position_embeddings": ORIGINAL}
FACTORS = {
    "short_factor": [1 + 0.1 * i for i in range(8)],
    "long_factor": [2 + 0.3 * i for i in range(8)],
}
RAMP = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": RAMP | TRAINED,
    "yarn": {"factor": 3.0} | TRAINED,
    "yarn with a magnitude": {"factor": 3.0, "mscale": 1.5, "mscale_all_dim": 0.7} | TRAINED,
    "longrope": FACTORS | TRAINED,
    "longrope with a factor": FACTORS | TRAINED | {"factor": 5.0},
    "longrope with a magnitude": FACTORS | TRAINED | {"attention_factor": 1.3},
    "longrope alike": FACTORS | TRAINED | {"long_factor": FACTORS["short_factor"]},
    "dynamic": {"factor": 2.0},
}

CHANGES = {"longrope", "longrope with a factor", "longrope with a magnitude", "dynamic"}
"""Of those, the angles depend on the length of a text."""


def values_of(name: str) -> dict[str, Any]:
    rope = {"rope_type": name.partition(" ")[0], "rope_theta": 500.0, **SCALINGS[name]}
    longest = ORIGINAL if name == "dynamic" else LONGEST
    wide = {"head_dim": 16, "max_position_embeddings": longest}
    return LLAMA | wide | {"rope_parameters": rope}


def assert_same(values: dict[str, Any], folder: Path, length: int, max_context: int | None) -> None:
    # transformers keeps frequencies from one text to the next, so each text has a new model.
    reference = reference_model(values)
    reference.save_pretrained(folder)
    ids = random_text(length)
    with torch.inference_mode():
        ours = load(folder, max_context=max_context)(ids)
        assert_same_logits(ours, reference_logits(reference, ids))


ASKED_FOR = {(name, LONGEST) for name in CHANGES}
"""A longer context than the default."""


@pytest.mark.parametrize(
    ("name", "max_context"), [*((name, None) for name in SCALINGS), *sorted(ASKED_FOR)]
)
def test_texts_of_a_context_are_those_of_transformers(
    name: str, max_context: int | None, tmp_path: Path
) -> None:
    reference_model(values_of(name)).save_pretrained(tmp_path)
    context = load(tmp_path, max_context=max_context).config.context_length
    assert context == (max_context or (ORIGINAL if name in CHANGES else LONGEST))
    for length in (LONGEST,) if max_context and name == "dynamic" else LENGTHS:
        if length <= context and (max_context is None or length > ORIGINAL):
            assert_same(values_of(name), tmp_path / str(length), length, max_context)


def test_scores_are_warmer_where_positions_are_scaled() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    plain, warm = (
        config_from_hf(DEEPSEEK_V3 | {"rope_scaling": rope}).blocks[0].attention.scale
        for rope in (None, scaling)
    )
    # Peng et al. 2023: 0.1 ln(factor) + 1, for queries and for keys.
    assert warm == pytest.approx(plain * 1.1386294**2)
