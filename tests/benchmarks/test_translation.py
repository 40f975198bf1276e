from pathlib import Path

import pytest

import translation
from ortolan.modeling.errors import RecipeError
from rounds import Turn

ROOT = Path(__file__).parents[2]


def turn(peer: str, round: int, outputs: list[str], seconds: float) -> Turn:
    return Turn(
        peer=peer,
        round=round,
        request={"beams": 4, "batch": 1},
        answer={"outputs": outputs, "seconds": seconds},
    )


def test_row_compares_speed_and_outputs() -> None:
    targets = ["un deux trois quatre", "deux deux trois quatre"]
    first, right, wrong = *targets, "un un un un"
    turns = [
        *(turn("a", 0, [first, right], 0.2), turn("transformers", 0, [first, wrong], 0.8)),
        *(turn("transformers", 1, [first, wrong], 0.8), turn("a", 1, [first, right], 0.4)),
    ]
    ours, theirs = translation.summarize(turns, targets)
    assert ours.sentences_per_s == pytest.approx((2 / 0.2 + 2 / 0.4) / 2)
    assert theirs.times == "3.00 (2.00-4.00)"
    assert (ours.same, theirs.same) == (0.5, 1.0)
    assert (ours.beams, ours.batch) == (4, 1)
    assert ours.bleu == pytest.approx(100)
    assert theirs.bleu < 90


def test_recipe_of_another_task_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"learns from Pairs, but data\.py:read returned"):
        translation.held_out_pairs(ROOT / "models" / "pythonic" / "recipe.toml")
