"""Reads a Hugging Face `config.json`, and reports the keys that were not read.

An unknown key may change what the model computes (a new kind of rope scaling, say), so it is an
error unless it is listed as inert or the caller accepts it by name.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Literal, TypeVar, overload

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.inert_keys import is_inert

T = TypeVar("T")

MAX_SIZE = 1 << 24
"""Bound of widths, vocabularies and contexts, above every published one."""

MAX_LAYERS = 1 << 12
"""Bound of the number of layers."""

READS_STATES = "reads_states"
"""Key that is added to the config of a head that predicts further tokens from a model's states."""

ROTARY_SECTIONS, FEATURE_PARTS = "rotary_sections", "feature_parts"
"""Keys that are added to the config of a language model that reads images: channel pairs of time,
row and column, which text does not tell apart; and the number of first blocks that add a further
part of the vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """The keys of a config by their fate; those of a nested object are written `object.key`.

    Attributes:
        read: keys that define what the model computes.
        ignored: keys that are known to change nothing.
        accepted: unknown keys that the caller accepted by name.
    """

    read: tuple[str, ...]
    ignored: tuple[str, ...]
    accepted: tuple[str, ...]


class ConfigReader:
    """The values of one config, and which of them were read."""

    def __init__(
        self, values: Mapping[str, object], name: str = "config.json", *, prefix: str = ""
    ) -> None:
        self._values = values
        self.name = name
        self._prefix = prefix
        self._read: set[str] = set()
        self._skipped: set[str] = set()
        self._nested: dict[str, ConfigReader] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...

    def get(self, key: str, kind: type[T], default: object = ...) -> object:
        """The value of `key`, or `default` where it is absent or null."""
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            if default is ...:
                raise ConfigError(
                    f"{self.name}: expected {key}, got nothing. Is this the model's own config?"
                )
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            # A number that overflows a float is an error like infinity.
            value = float(value) if abs(value) < 1 << 1023 else math.inf
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{self.name}: expected {key} to be finite, got {value}. Correct it.")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(
                f"{self.name}: expected {key} of type {kind.__name__}, got {value!r:.80}. "
                "Correct it."
            )
        return value

    @overload
    def size(self, key: str, *, most: int = MAX_SIZE) -> int: ...
    @overload
    def size(self, key: str, default: None, *, most: int = MAX_SIZE) -> int | None: ...
    @overload
    def size(self, key: str, default: int, *, most: int = MAX_SIZE) -> int: ...

    def size(
        self, key: str, default: int | EllipsisType | None = ..., *, most: int = MAX_SIZE
    ) -> int | None:
        """The value of `key` as a size from 1 to `most`; see `get`."""
        if isinstance(default, EllipsisType):
            value: int | None = self.get(key, int)
        elif default is None:
            value = self.get(key, int, None)
        else:
            value = self.get(key, int, default)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(
                f"{self.name}: expected {key} to be 1 to {most}, got {value!r:.40}. Correct it."
            )
        return value

    def nullable(self, key: str, kind: type[T], default: T | None) -> T | None:
        """The value of `key`: null means None, and `default` is for an absent key alone."""
        return self.get(key, kind, None) if key in self else default

    def is_list(self, key: str) -> bool:
        """Whether the value of `key` is a list."""
        return isinstance(self._values.get(key), list)

    def is_text(self, key: str) -> bool:
        """Whether the value of `key` is a string, which counts as read then."""
        if not isinstance(self._values.get(key), str):
            return False
        self._read.add(key)
        return True

    def nested(
        self, key: str, implied: Mapping[str, object] | None = None
    ) -> "ConfigReader | None":
        """A reader of the object under `key`; None if absent or null.

        `finish` of this reader covers its keys too.
        """
        values = self.get(key, dict, None)
        if values is None:
            return None
        path = f"{self._prefix}{key}"
        inner = ConfigReader(
            {**(implied or {}), **values}, f"{self.name}: {key}", prefix=f"{path}."
        )
        return self._nested.setdefault(key, inner)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """The ids under `key`: null, a number or a list."""
        self._read.add(key)
        value = self._values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError(
                f"{self.name}: expected {key} to be token ids, got {value!r:.80}. Correct it."
            )
        return tuple(ids)

    def model_fields(self) -> dict[str, Any]:
        """The fields of every `ModelConfig`."""
        return {
            "model_type": self.get("model_type", str),
            "bos_token_id": self.get("bos_token_id", int, None),
            "eos_token_ids": self.token_ids("eos_token_id"),
            "pad_token_id": self.get("pad_token_id", int, None),
            "feature_token_id": self.get("feature_token_id", int, None),
            "feature_attention": self.get("feature_attention", str, "causal"),
        }

    def numbers(self, key: str) -> tuple[float, ...]:
        """The list of finite numbers under `key`."""
        values = self.get(key, list)
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            raise ConfigError(
                f"{self.name}: expected {key} to be numbers, got {values!r:.80}. Correct it."
            )
        return tuple(map(float, values))

    def architecture(self, *known: str) -> str:
        """The model class in `architectures`, which determines the head."""
        names = self.get("architectures", list, [])
        if len(names) != 1 or names[0] not in known:
            raise ConfigError(
                f"{self.name}: expected architectures to hold one of {', '.join(known)}, got "
                f"{names!r:.80}. This checkpoint cannot be loaded faithfully."
            )
        return str(names[0])

    def refuse(self, key: str) -> None:
        """Raise ConfigError if a switch is on that changes the model in an unsupported way."""
        if self.get(key, bool, False):
            raise ConfigError(
                f"{self.name}: expected {key} false, got true. "
                "This checkpoint cannot be loaded faithfully."
            )

    def require(self, key: str) -> None:
        """Raise ConfigError if a switch is off that every supported model has on."""
        if not self.get(key, bool, True):
            raise ConfigError(
                f"{self.name}: expected {key} true, got false. "
                "This checkpoint cannot be loaded faithfully."
            )

    def skip(self, *keys: str) -> None:
        """Declare keys that change nothing in this family."""
        self._skipped.update(keys)

    def understood(self, *keys: str) -> None:
        """Declare keys that were read elsewhere."""
        self._read.update(key for key in keys if not is_inert(key, self._values.get(key)))

    def finish(self, accept_unknown: Collection[str] = ()) -> ConfigKeys:
        """The fate of every key, including those of nested objects."""
        fates, unknown = dict(self._fates()), set(self.unknown())
        for key in accept_unknown:
            if key not in unknown:
                got = "none of that name" if key not in fates else f"one that is {fates[key]}"
                raise ConfigError(
                    f"{self.name}: expected an unknown key {key!r:.80} to accept, got {got}. "
                    "Leave it out."
                )
        refused = sorted(unknown - set(accept_unknown))
        if refused:
            raise ConfigError(self._unknown(refused))
        return ConfigKeys(
            read=tuple(key for key, fate in fates.items() if fate == "read"),
            ignored=tuple(key for key, fate in fates.items() if fate == "ignored"),
            accepted=tuple(sorted(unknown)),
        )

    def unknown(self) -> tuple[str, ...]:
        """The keys that were not read and may matter."""
        return tuple(sorted(key for key, fate in self._fates() if fate == "unknown"))

    def _fates(self) -> Iterator[tuple[str, Literal["read", "ignored", "unknown"]]]:
        """The fate of each key that has a value."""
        for key, value in self._values.items():
            name = f"{self._prefix}{key}"
            if value is None:
                continue
            if key in self._nested:
                yield from self._nested[key]._fates()
            elif key in self._read:
                yield name, "read"
            elif key in self._skipped or is_inert(key, value):
                yield name, "ignored"
            else:
                yield name, "unknown"

    def _unknown(self, refused: list[str]) -> str:
        """The message for unknown keys."""
        fates = dict(self._fates())
        read = [f"{key} {self._value(key)!r:.30}" for key, fate in fates.items() if fate == "read"]
        ignored = sum(fate == "ignored" for fate in fates.values())
        flags = " ".join(f"--accept-unknown {key}" for key in refused)
        return (
            f"{self.name}: expected only keys whose effect is known, got {', '.join(refused)}. "
            f"Understood: {', '.join(read)}{f'; {ignored} more change nothing' if ignored else ''}"
            f". If these do not change what the model computes either, accept them: {flags}"
        )

    def _value(self, name: str) -> object:
        """The value under a name that `finish` returns."""
        key = name.removeprefix(self._prefix)
        for outer, inner in self._nested.items():
            if key.startswith(f"{outer}."):
                return inner._value(name)
        return self._values[key]
