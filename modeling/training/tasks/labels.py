"""Configs of classifiers."""

from collections.abc import Mapping, Sequence

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ClassifierHead, EncoderConfig
from ortolan.modeling.errors import ConfigError


def classifier_config(
    model: Mapping[str, object], architecture: str, labels: Sequence[str]
) -> EncoderConfig:
    """The config of an encoder that classifies.

    Args:
        model: the keys of a Hugging Face config.
        architecture: the class that transformers loads it with, unless `model` names one.
        labels: their names.

    Raises:
        ConfigError: the model is not one that Ortolan has, or it has other labels.
    """
    keys: dict[str, object] = {
        "architectures": [architecture],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    config = config_from_hf({**keys, **model}, EncoderConfig)
    found = config.head.labels if isinstance(config.head, ClassifierHead) else ()
    if found != tuple(labels):
        raise ConfigError(
            f"model: expected a classifier of the {len(labels)} labels of the data, got "
            f"{type(config.head).__name__} of {len(found)}. Leave architectures and labels out."
        )
    return config
