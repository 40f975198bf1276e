"""Hugging Face's names of activations, and ours."""

from ortolan.modeling.config import Activation
from ortolan.modeling.errors import ConfigError

NAMES: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def read_activation(name: str) -> Activation:
    """Our name of an activation.

    Raises:
        ConfigError: an activation that Ortolan does not have.
    """
    if name not in NAMES:
        raise ConfigError(
            f"config.json: expected an activation of {', '.join(NAMES)}, got {name!r}. "
            "This checkpoint cannot be loaded faithfully."
        )
    return NAMES[name]


def write_activation(activation: str) -> str:
    """Hugging Face's name, the first that `NAMES` has for it.

    Raises:
        ConfigError: an activation that only one family has.
    """
    for name, ours in NAMES.items():
        if ours == activation:
            return name
    raise ConfigError(
        f"feed_forward: expected an activation of {', '.join(NAMES)}, got {activation}. "
        "Save it as another family."
    )
