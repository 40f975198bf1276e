"""Published names of activations."""

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
    """Our name of a published activation."""
    if name not in NAMES:
        raise ConfigError(
            f"config.json: the activation must be one of {', '.join(NAMES)} (got {name!r}). "
            "This checkpoint cannot be loaded faithfully."
        )
    return NAMES[name]


def write_activation(activation: str) -> str:
    """The published name of an activation: the first in `NAMES`."""
    for name, ours in NAMES.items():
        if ours == activation:
            return name
    raise ConfigError(
        f"feed_forward: the activation must be one of {', '.join(NAMES)} (got {activation}). "
        "Save the model as another family."
    )
