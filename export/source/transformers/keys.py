"""Keys of a config that transformers keeps without reading them."""

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
    kept,
)
from ortolan.modeling.families.reader import ConfigKeys, ConfigReader

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def read_keys(
    values: Mapping[str, object], config: "PreTrainedConfig", accept_unknown: Collection[str]
) -> ConfigKeys:
    """What became of the keys of a config.json.

    Args:
        values: of the config.json.
        config: what transformers made of them.
        accept_unknown: keys to ignore although nothing is known of them.

    Raises:
        ConfigError: keys that transformers keeps and does not read, which may matter to whoever
            wrote them; or one is accepted that is not of these.
    """
    reader = _reader(values, config)
    return reader.finish(accept_unknown)


def unread_keys(values: Mapping[str, object]) -> tuple[str, ...]:
    """The keys for which `read_keys` raises; see `build_skeleton`."""
    build_skeleton(values)
    return _reader(values, config_of(values)).unknown()


def _reader(values: Mapping[str, object], config: "PreTrainedConfig") -> ConfigReader:
    kind: Any = type(config)
    declared = {field.name for field in fields(kind)} | set(config.attribute_map)
    given = kept(values)
    undeclared = (given.keys() & vars(config).keys()) - declared
    # A class computes some attributes from others: these it has without being given them.
    without = kind.from_dict({key: each for key, each in given.items() if key not in undeclared})
    unread = undeclared - vars(without).keys()
    unread -= _names_read(config) if unread else set()
    reader = ConfigReader(values)
    reader.skip(*IGNORED)
    reader.understood(*(given.keys() - unread))
    return reader


def _names_read(config: "PreTrainedConfig") -> set[str]:
    """Keys that are read though the class of a config does not declare them.

    Its model reads some while it is built, as the `head_dim` of many; and the class itself takes
    old names out of what it is given.
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
