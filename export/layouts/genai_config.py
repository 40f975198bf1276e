"""Reads the part of genai_config.json that describes a decoder."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ortolan.export.errors import LayoutError
from ortolan.runtime import limits

CONFIG = "genai_config.json"
"""Settings of onnxruntime-genai; without this file a folder is not in its layout."""

Count = Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
Token = Annotated[int, Meta(ge=0, lt=limits.MAX_VOCABULARY)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_LABEL_LENGTH)]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of inputs; `%d` stands for the layer."""

    input_ids: Name = "input_ids"
    attention_mask: Name = "attention_mask"
    past_key_names: Name = "past_key_values.%d.key"
    past_value_names: Name = "past_key_values.%d.value"


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of outputs; `%d` stands for the layer."""

    logits: Name = "logits"
    present_key_names: Name = "present.%d.key"
    present_value_names: Name = "present.%d.value"


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """The graph and its sizes."""

    filename: Annotated[str, Meta(pattern=limits.FILE_NAME_PATTERN)]
    head_size: Count
    num_hidden_layers: Count
    num_key_value_heads: Count
    inputs: Inputs = Inputs()
    outputs: Outputs = Outputs()
    pipeline: list[object] = []


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model and its token ids."""

    type: Name
    context_length: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    vocab_size: Annotated[int, Meta(ge=1, le=limits.MAX_VOCABULARY)]
    decoder: Decoder
    bos_token_id: Token | None = None
    eos_token_id: Token | list[Token] = []
    pad_token_id: Token | None = None
    encoder: object = None
    embedding: object = None
    vision: object = None
    speech: object = None

    @property
    def eos(self) -> tuple[int, ...]:
        """Tokens that end a sequence."""
        if isinstance(self.eos_token_id, int):
            return (self.eos_token_id,)
        return tuple(dict.fromkeys(self.eos_token_id))


class GenaiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The file. Its search options are those of onnxruntime-genai, and are not read."""

    model: Model


def read_config(folder: Path) -> GenaiConfig:
    """Read the settings of a folder.

    Raises:
        LayoutError: there are none, or they describe more than a decoder.
    """
    try:
        data = (folder / CONFIG).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LayoutError(
            f"{folder} has no {CONFIG}. Pass a folder that the model builder of "
            "onnxruntime-genai wrote."
        ) from error
    try:
        config = msgspec.json.decode(data, type=GenaiConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(
            f"{CONFIG} does not describe a decoder: {str(error)[:300]}. Build the folder again."
        ) from error
    model = config.model
    for name in ("encoder", "embedding", "vision", "speech"):
        if getattr(model, name) is not None:
            raise LayoutError(f"Only decoders can be imported (this model also has {name!r}).")
    if model.decoder.pipeline:
        raise LayoutError("Only a decoder in one graph can be imported (this one is a pipeline).")
    return config
