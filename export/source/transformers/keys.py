"""Finds the keys of a config.json that transformers stores but never reads."""

import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ortolan.export.source.transformers.skeleton import (
    IGNORED,
    build,
    build_skeleton,
    config_of,
    passed_values,
)
from ortolan.modeling.families.reader import ConfigKeys, ConfigReader

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def read_keys(
    values: Mapping[str, object], config: "PreTrainedConfig", accept_unknown: Collection[str]
) -> ConfigKeys:
    """The keys of a config.json, as read, ignored or accepted."""
    return _reader(values, config).finish(accept_unknown)


def unread_keys(values: Mapping[str, object]) -> tuple[str, ...]:
    """The keys for which `read_keys` raises; see `build_skeleton`."""
    build_skeleton(values)
    return _reader(values, config_of(values)).unknown()


def _reader(values: Mapping[str, object], config: "PreTrainedConfig") -> ConfigReader:
    kind: Any = type(config)
    declared = {field.name for field in fields(kind)} | set(config.attribute_map)
    passed = passed_values(values)
    undeclared = (passed.keys() & vars(config).keys()) - declared
    # Some attributes are computed from others: the class has them even without these keys.
    without = kind.from_dict({key: v for key, v in passed.items() if key not in undeclared})
    unread = undeclared - vars(without).keys()
    unread -= _names_read(config) if unread else set()
    reader = ConfigReader(values)
    reader.skip(*IGNORED)
    reader.understood(*(passed.keys() - unread))
    return reader


def _names_read(config: "PreTrainedConfig") -> set[str]:
    """Keys that are read although the config's class does not declare them.

    Building the model reads some, such as `head_dim`, and the class itself pops old names from its
    keyword arguments.
    """
    read: set[str] = set()
    kind: Any = type(config)
    own = kind.__getattribute__

    def recorded(self: object, name: str) -> Any:
        read.add(name)
        return own(self, name)

    kind.__getattribute__ = recorded
    try:
        build(config)
    finally:
        del kind.__getattribute__
    return read | set(re.findall(r"kwargs\.\w+\(\s*\"(\w+)\"", inspect.getsource(kind)))
