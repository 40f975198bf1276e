"""Errors of modeling.

OrtolanError
└── ModelingError
    ├── ConfigError        a config asks for something unknown or contradictory
    ├── CheckpointError    a checkpoint folder cannot be read
    │   └── WeightError    weights missing, unexpected or of the wrong shape
    └── RecipeError        a training recipe is wrong
"""

from typing import ClassVar

from ortolan.errors import OrtolanError


class ModelingError(OrtolanError):
    """The root of this tree."""

    code: ClassVar[str] = "modeling"


class ConfigError(ModelingError):
    """A config asks for something that is unknown, unsupported or contradictory."""

    code: ClassVar[str] = "config"


class CheckpointError(ModelingError):
    """A checkpoint folder is absent, incomplete, or in a format that is refused."""

    code: ClassVar[str] = "checkpoint"


class WeightError(CheckpointError):
    """The weights of a checkpoint do not fit its config; names them."""

    code: ClassVar[str] = "weight"


class RecipeError(ModelingError):
    """A training recipe has an unknown, missing or impossible value."""

    code: ClassVar[str] = "recipe"
