"""`BodyDecoder`: reads JSON bodies, and skips unknown fields that ask for nothing."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

B = TypeVar("B")

MAX_EXACT = 2**53
"""Integers below it are exact as floats."""

_CHANGED = frozenset({float, list, dict})
"""Types of values to look into; others, such as token ids, stay."""

_OFF: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_content_format": ("auto",),
    "detokenize": (True,),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (False,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "embed_dtype": ("float32",),
    "endianness": ("native",),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "json_object": (False,),
    "late_chunking": (False,),
    "logits_processors": ([],),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "raw_scores": (False,),
    "repeat_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_progress": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "store": (False,),
    "tfs_z": (1,),
    "timings_per_token": (False,),
    "top_a": (0,),
    "typ_p": (1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
"""Values of unsupported options that turn them off, as in vLLM, SGLang and llama.cpp."""


class BodyDecoder(Generic[B]):
    """Decodes JSON bodies into a structure.

    Unknown fields are errors, unless their value is null or turns the option off: clients of other
    servers write all defaults into every body. Integers may be written as 4.0.
    """

    def __init__(self, kind: type[B]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> B:
        """Decode a body."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            try:
                fields = _without_off(msgspec.json.decode(data), self._kind)
            except msgspec.ValidationError:  # numbers out of range; the first error says where
                raise error from None
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"{error}") from error
        return self._decoder.decode(msgspec.json.encode(fields))


def _without_off(value: Any, kind: Any) -> Any:
    """Leave out unknown fields that are off, and write integral floats as integers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [_without_off(item, kind) if type(item) in _CHANGED else item for item in value]
    known = _fields(kind)
    if not isinstance(value, dict) or not known:
        return value
    return {
        name: _without_off(item, known.get(name))
        for name, item in value.items()
        if name in known or (item is not None and item not in _OFF.get(name, ()))
    }


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Types of the fields of all structures among the alternatives of a type, also in lists."""
    return {name: of for each in _structs(kind) for name, of in get_type_hints(each).items()}


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)
