"""The families of published checkpoints: one small file each.

A family maps a published config to a `TransformerConfig` and published weight names to ours,
and back. Adding one is a file and a row in `FAMILIES`.
"""

from typing import Protocol

from ortolan.modeling.config import TransformerConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import gpt2, llama, mistral, qwen2
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table


class Family(Protocol):
    """What a family's file holds."""

    @property
    def WEIGHTS(self) -> Table:  # noqa: N802 - a module's constant
        """Published weight names to ours."""
        ...

    @property
    def BASE_MODEL_PREFIX(self) -> str:  # noqa: N802 - a module's constant
        """What checkpoints of the model without its head leave out of names."""
        ...

    def config(self, hf: ConfigReader, /) -> TransformerConfig:
        """A published config as ours."""
        ...

    def hf_config(self, config: TransformerConfig, /) -> dict[str, object]:
        """Ours as a published config."""
        ...


FAMILIES: dict[str, Family] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
}


def family_of(model_type: str) -> Family:
    """The family of a `model_type`.

    Raises:
        ConfigError: there is none of that name.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"model_type: expected one of {', '.join(FAMILIES)}, got {model_type!r}. "
            "CONTRIBUTING.md shows how to add a family."
        )
    return FAMILIES[model_type]
