"""Training by a recipe, on the user's own data.

A recipe is a TOML file (`recipe.py`). It names the function that reads the data (`data.py`).
"""

from ortolan.modeling.training.data import (
    Answers,
    Images,
    LabelledImages,
    LabelledTexts,
    Pair,
    Pairs,
    Texts,
    equal_share,
)

__all__ = [
    "Answers",
    "Images",
    "LabelledImages",
    "LabelledTexts",
    "Pair",
    "Pairs",
    "Texts",
    "equal_share",
]
