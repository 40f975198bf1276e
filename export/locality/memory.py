"""Finds what a module remembers between calls without its state, and random numbers.

A bundle computes every step from its inputs and states alone. Whatever else a module remembers,
such as a counter or a buffer that grows, would stay at its value of the export.
"""

import sys
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ortolan.export.locality.differences import Lines, difference, first_difference
from ortolan.export.locality.runs import called
from ortolan.export.trace.lines import is_of_library
from ortolan.export.trace.module import NESTED
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

_OWN_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every module has."""

_ADVICE = "A bundle keeps nothing but its State between calls: use state.recall and state.keep"


def check_memory(module: nn.Module, ids: Tensor, others: Tensor, tolerance: float) -> None:
    """Refuse a module that remembers earlier calls without its state, or is random.

    1. Call it twice. No attribute that the second call reads before it writes may change in it.
    2. Call it on the same ids again, at once and after others: the logits must be the same.
    3. Do so with other random numbers.
    """
    name = type(module).__name__
    with Watch(name, module) as watch:
        called(module, others)
        before = watch.contents()
        watch.start()
        logits = called(module, ids)
        watch.check(before)
    for earlier in (ids, others):
        if differs(logits, called(module, ids), tolerance):
            raise forgetful(name)
        called(module, earlier)
    if differs(logits, called(module, ids, seed=1), tolerance):
        raise random_refusal(module, ids)


def differs(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether logits of the same ids differ."""
    return difference({"": one}, {"": other}, tolerance) is not None


def forgetful(name: str) -> ConfigError:
    """The error for a module that computes other logits for the same ids."""
    return ConfigError(
        f"{name}: a second call on the same ids computes other logits: the module remembers "
        f"something between calls. {_ADVICE}."
    )


def random_refusal(module: nn.Module, ids: Tensor) -> ConfigError:
    """The error for a module whose calls are random, with the line if it can be found."""
    logits = [{"": called(module, ids, seed=seed)} for seed in (0, 1)]
    found = difference(logits[0], logits[1], 0.0)
    lines = [Lines(found.token if found else 0) for _ in logits]
    for seed, recorded in enumerate(lines):
        with recorded.of_call(ids.shape, 0):
            called(module, ids, seed=seed)
    return ConfigError(
        f"{type(module).__name__}: the same ids give other logits in every call; forward is random"
        f"{first_difference(lines[0], lines[1], 0.0)}. Leave noise out, and use dropout only while "
        "training: nn.Dropout, or F.dropout(x, p, training=self.training)."
    )


class Watch:
    """Records which attributes of a module a call reads before it writes them.

    Classes of all its parts are replaced by ones that record, until the end of the context.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self._name, self._module = name, module
        self._paths = {id(part): path for path, part in module.named_modules()}
        self._classes: list[tuple[nn.Module, type[nn.Module]]] = []
        self._is_read: dict[tuple[int, str], bool] | None = None

    def __enter__(self) -> "Watch":
        for part in self._module.modules():
            cls = type(part)
            try:
                part.__class__ = self._recording(cls)
            except TypeError:  # such as a compiled module
                continue
            self._classes.append((part, cls))
        return self

    def __exit__(self, *_: object) -> None:
        for part, cls in self._classes:
            part.__class__ = cls

    def start(self) -> None:
        """Record from here on."""
        self._is_read = {}

    def contents(self) -> Mapping[tuple[int, str], object]:
        """Fingerprints of all attributes, and of numbers that belong to their classes."""
        found: dict[tuple[int, str], object] = {}
        for part in self._module.modules():
            values = {**vars(part), **part._buffers}
            for name in values.keys() - _OWN_OF_TORCH:
                found[id(part), name] = _fingerprint(values[name])
        for base in dict.fromkeys(base for part, _ in self._classes for base in type(part).__mro__):
            module = sys.modules.get(base.__module__)
            if module is None or is_of_library(getattr(module, "__file__", None) or "<"):
                continue
            for owner in (base, module):
                for name, value in list(vars(owner).items()):
                    if isinstance(value, (int, float)) and not name.startswith("__"):
                        found[id(owner), f"{owner.__name__}.{name}"] = value
        return found

    def check(self, before: Mapping[tuple[int, str], object]) -> None:
        """Refuse attributes that were read and have changed since."""
        is_read, self._is_read = self._is_read or {}, None
        after = self.contents()
        for owner, name in dict.fromkeys([*before, *after]):
            value = before.get((owner, name))
            if after.get((owner, name)) == value or not is_read.get((owner, name), "." in name):
                continue
            if "." in name:
                raise ConfigError(f"{self._name}: every call changes {name}. {_ADVICE}.")
            raise ConfigError(
                f"{self._name}: forward reads {self._path(owner, name)} and changes it in every "
                f"call. {_ADVICE}; a training loss may be stored, but not read."
            )

    def note(self, part: nn.Module, name: str, *, is_read: bool) -> bool:
        """Record the first access to an attribute; return whether this was it."""
        if self._is_read is None:
            return False
        key = id(part), name
        is_first = key not in self._is_read
        self._is_read.setdefault(key, is_read)
        return is_first

    def refuse_state(self, part: nn.Module, name: str) -> None:
        """Refuse a state of an earlier call."""
        raise ConfigError(
            f"{self._name}: forward reads the state of an earlier call from "
            f"{self._path(id(part), name)}. Every call has its own: pass on the argument `state`, "
            "or set the attribute in every call."
        )

    def _path(self, owner: int, name: str) -> str:
        path = self._paths.get(owner, "")
        return f"self.{path}.{name}" if path else f"self.{name}"

    def _recording(self, cls: type[nn.Module]) -> type[nn.Module]:
        watch = self

        def read(part: nn.Module, name: str) -> Any:
            is_first = not name.startswith("__") and watch.note(part, name, is_read=True)
            value = cls.__getattribute__(part, name)
            if is_first and isinstance(value, State):
                watch.refuse_state(part, name)
            return value

        def write(part: nn.Module, name: str, value: Any) -> None:
            watch.note(part, name, is_read=False)
            cls.__setattr__(part, name, value)

        methods = {"__getattribute__": read, "__setattr__": write, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), methods)


def _fingerprint(value: object, depth: int = 0) -> object:
    """Something that differs where a value differs."""
    match value:
        case Tensor():
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return str(value.dtype), tuple(value.shape), zlib.crc32(data.data)
        case np.ndarray():
            return value.shape, zlib.crc32(value.tobytes())
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return repr(value)
        case torch.Generator():
            return _fingerprint(value.get_state())
        case dict() if depth < NESTED:
            return [(repr(key), _fingerprint(part, depth + 1)) for key, part in value.items()]
        case list() | tuple() | set() | deque() if depth < NESTED:
            return [_fingerprint(part, depth + 1) for part in value]
        case nn.Module() | type():
            return None
        case _ if depth < NESTED and hasattr(value, "__dict__") and not callable(value):
            return _fingerprint(vars(value), depth + 1)
    return type(value).__name__
