"""What a config says of the labels of a classifier."""

from collections.abc import Sequence

from ortolan.modeling.config import ClassifierHead, EncoderConfig
from ortolan.modeling.errors import ConfigError


def label_keys(architecture: str, labels: Sequence[str]) -> dict[str, object]:
    """The keys of a Hugging Face config that name a class with these labels."""
    return {
        "architectures": [architecture],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def check_labels(config: EncoderConfig, labels: Sequence[str]) -> None:
    """Raise ConfigError unless the model classifies into these labels."""
    found = config.head.labels if isinstance(config.head, ClassifierHead) else ()
    if found != tuple(labels):
        raise ConfigError(
            f"model: expected a classifier of the {len(labels)} labels of the data, got "
            f"{type(config.head).__name__} of {len(found)}. Leave architectures and labels out."
        )
