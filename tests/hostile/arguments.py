"""Random arguments for any function of the API, from its signature: mostly valid, or anything."""

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from tests.nonsense import ARRAYS, NUMBERS, PROMPTS

from ortolan.runtime import Grammar, PromptLookup, Sampling
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.generation.options import BeamOptions, Options
from ortolan.runtime.loading import LoadOptions
from ortolan.runtime.serving.encoder_service import EncoderServeOptions
from ortolan.runtime.serving.seq2seq_service import Seq2SeqServeOptions
from ortolan.runtime.serving.service import ServeOptions
from ortolan.runtime.transcription.ctc import CtcOptions
from ortolan.runtime.transcription.dictation import DictationOptions
from ortolan.runtime.transcription.transcriber import TranscribeOptions

Draw = Callable[[Random], Any]

_OPTIONS = {
    kind.__name__: kind
    for kind in (
        *(BeamOptions, ChatOptions, CtcOptions, DictationOptions, EncoderServeOptions),
        *(LoadOptions, Options, Seq2SeqServeOptions, ServeOptions, TranscribeOptions),
    )
}

_LEFT_OUT = frozenset({"cache_folder", "isolate", "progress", "adapters"})
"""Parameters that start processes, or name a folder that would be created."""

_LIMIT = "max_new_tokens"

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

_WHITE = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="

_URLS = (_WHITE, _WHITE[:40], "data:image/png;base64,", "file:///etc/passwd", "https://a/b.png")


class CallersError(Exception):
    """Raised by a function in the arguments; must reach the caller."""


def arguments(random: Random, function: Callable[..., Any], inputs: Draw) -> dict[str, Any]:
    """Arguments of a function, by name.

    Args:
        random: chooses them.
        function: of the API.
        inputs: draws what the model reads.
    """
    kinds, optional = parameters_of(function)
    count = min(len(optional), random.choice([0, 0, 1, 1, 2, 4]))
    names = [name for name in kinds if name not in optional] + random.sample(optional, count)
    if _LIMIT in optional and random.random() < 0.97:
        names = [*dict.fromkeys([*names, _LIMIT])]
    draws = {name: _draw(name, kinds[name], inputs) for name in names}
    values = {name: maybe(random, draw, 0.08) for name, draw in draws.items()}
    if random.random() < 0.02 and _LIMIT in optional:
        values[random.choice(["max_tokens", "max_new_token", "x", "\ud800", ""])] = anything(random)
    return values


def least_arguments(function: Callable[..., Any], inputs: Draw) -> dict[str, Any]:
    """The fewest arguments that a function accepts."""
    kinds, optional = parameters_of(function)
    needed = [name for name in kinds if name not in optional]
    values = {name: _draw(name, kinds[name], inputs)(Random(1)) for name in needed}
    return values | ({_LIMIT: 1} if _LIMIT in optional else {})


@cache
def parameters_of(function: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """Types of the parameters, and names of those with a default; options are such parameters."""
    kinds, optional = dict[str, Any](), list[str]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (kind,) = re.findall(r"\w*Options", str(parameter.annotation).rpartition(".")[2])
            kinds |= get_type_hints(_OPTIONS[kind])
            optional += _OPTIONS[kind].__optional_keys__
        elif name != "self":
            kinds[name] = parameter.annotation
            optional += [] if parameter.default is parameter.empty else [name]
    kinds = {name: kind for name, kind in kinds.items() if name not in _LEFT_OUT}
    return kinds, sorted(kinds.keys() & optional)


def _draw(name: str, annotation: Any, inputs: Draw) -> Draw:
    """Draws valid values of a parameter: by its name, or else by its type."""
    values = inputs if name in _INPUTS else VALUES.get(name)
    if callable(values):
        return values
    kinds = (annotation, *get_args(annotation))
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    choices += [choice for kind in kinds for choice in PLAIN.get(kind, ())]
    return lambda random: random.choice(values or choices)


def maybe(random: Random, right: Draw, share: float = 0.1) -> Any:
    """Return a valid value, or in a share of all calls anything."""
    return anything(random) if random.random() < share else right(random)


def anything(random: Random, depth: int = 0) -> Any:
    match random.randrange(8 if depth < 3 else 4):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(PROMPTS)
        case 2:
            return random.choice(ARRAYS)
        case 3:
            others = (None, b"a", bytearray(b"a"), memoryview(b"ab"), object(), Path("x"), int)
            special = (_raising, _generator(random), range(3), slice(3), Sampling(), ..., {1, 2})
            return random.choice([*others, *special])
        case 4 | 5:
            return [anything(random, depth + 1) for _ in range(random.choice([0, 1, 1, 2, 3, 40]))]
        case 6:
            return tuple(anything(random, depth + 1) for _ in range(random.choice([0, 1, 2])))
    keys: list[Any] = ["role", "content", "type", "function", "name", "x", 1, None, "\ud800"]
    return {
        key: anything(random, depth + 1) for key in random.sample(keys, random.choice([0, 1, 2, 4]))
    }


def _raising() -> bool:
    raise CallersError("from the caller")


def _generator(random: Random) -> Iterator[int]:
    return (random.randrange(97) for _ in range(3))


# --- what models read ---------------------------------------------------------------------------


def image(random: Random) -> Any:
    """Return pixels, or something that is no image."""
    shape = (random.choice([8, 8, 4, 9, 1, 30]), random.choice([8, 6]), random.choice([3, 3, 1, 4]))
    pixels = np.full(shape, random.randrange(256), np.uint8)
    return random.choice([pixels, pixels, pixels, pixels.astype("f"), b"GIF89a", Path("/nowhere")])


def sound(random: Random) -> Any:
    """Return samples of some length, or something that is no sound."""
    count = random.choice([1, 100, 3000, 16_000, 16_001, 40_000, 0])
    samples = np.random.default_rng(random.randrange(99)).standard_normal(count) * 0.1
    samples = samples.astype("f")
    if random.random() < 0.2 and count:
        samples[random.randrange(count)] = random.choice([np.nan, np.inf, 1e30, 33.0])
    whole = (samples.clip(-1, 1) * 32_767).astype(np.int16) if random.random() < 0.2 else samples
    cut = b"RIFF\x24\xf0\xff\x7fWAVEfmt \x10\0\0\0\x01\0\x01\0"
    many = np.zeros((random.choice([5, 4000]), random.choice([1, 2, 9])), np.float64)
    if random.random() < 0.8:
        return whole
    return random.choice([many, cut, b"OggS", Path("/nowhere"), "/dev/zero"])


def prompt(random: Random) -> Any:
    """Return a text or ids, mostly of a few tokens that every vocabulary has."""
    count = random.choice([1, 2, 3, 5, 10, 20, 200, 1200] if random.random() < 0.3 else [1, 4])
    ids = [random.randrange(5, 15) for _ in range(count)]
    if random.random() < 0.05:
        images = [{"image": maybe(random, image)}] * random.choice([1, 2])
        return [*images, "a b"]
    if random.random() < 0.05:
        return [*ids, random.choice([-1, 16, 97, 2**31, 2**63])]
    forms: tuple[Any, ...] = (ids, tuple(ids), np.array(ids), np.array(ids, "<i8"))
    text = random.choice(PROMPTS) if random.random() < 0.3 else "a b c"
    return random.choice([text, *forms])


def several(one: Draw) -> Draw:
    """Draws one input, or a list of them."""

    def draw(random: Random) -> Any:
        if random.random() < 0.7:
            return one(random)
        return [maybe(random, one) for _ in range(random.choice([0, 1, 2, 4]))]

    return draw


def _messages(random: Random) -> Any:
    earlier = [maybe(random, _message) for _ in range(random.choice([0, 0, 1, 2]))]
    return [*earlier, {"role": "user", "content": "a"}]


def _message(random: Random) -> Any:
    content = [maybe(random, _part) for _ in range(random.choice([0, 1, 2, 3]))]
    fields: dict[str, Any] = {
        "role": random.choice(["user", "assistant", "system", "tool", "developer", "x"]),
        "content": maybe(random, lambda r: content if r.random() < 0.2 else "a b"),
    }
    if random.random() < 0.2:
        fields[random.choice(["tool_calls", "name", "tool_call_id", "x"])] = anything(random)
    return fields


def _part(random: Random) -> Any:
    url = maybe(random, lambda r: r.choice(_URLS))
    return random.choice(
        [
            {"type": "text", "text": maybe(random, lambda _: "a <image>")},
            {"type": "image_url", "image_url": {"url": url} if random.random() < 0.9 else url},
            {"type": "image", "image": maybe(random, image)},
        ]
    )


def _grammar(random: Random) -> Grammar:
    schema = {"type": random.choice(["integer", "null"])}
    sources: dict[Callable[[Any], Grammar], Any] = {
        Grammar.regex: "[ab]{1,5}",
        Grammar.json_schema: schema,
        Grammar.lark: 'start: "a"',
    }
    make, source = random.choice([*sources.items(), (Grammar, "x")])
    return make(maybe(random, lambda _: source))


_INPUTS = frozenset({"prompt", "inputs", "source", "text", "sound"})

PLAIN: dict[Any, tuple[Any, ...]] = {
    type(None): (None,),
    bool: (True, False),
    int: (0, 1, 1, 2, 3, 20),
    float: (0.0, 0.5, 1.0, -1.0, 1e-30, 1e30),
    str: ("a", "b c", "a {}."),
    Mapping[str, Any]: ({"x": 1},),
}
"""Valid values by type."""

VALUES: dict[str, Draw | tuple[Any, ...]] = {
    "blocks": lambda random: [sound(random) for _ in range(random.choice([0, 1, 3]))],
    "cancel": (None, threading.Event(), lambda: False, lambda: True, _raising),
    "chunk": (None, 32, 128),
    "device": ("cpu",),
    "documents": (None, [_TOOL]),
    "draft": lambda random: random.choice([None, None, PromptLookup()]),
    "early_stopping": (True, False, "never"),
    "grammar": _grammar,
    "ids": prompt,
    "kind": (None,),
    "logit_bias": ({5: -100}, {96: 1e38, 3: -3e38}),
    "labels": (["a"], ["a", "b c"]),
    "language": ("en", "de", "xx", None),
    _LIMIT: (1, 2, 5, 12),
    "messages": _messages,
    "path": lambda random: Path("/nowhere") / f"{random.random()}",
    "rate": (None, 16_000, 8000, 999, 44_100),
    "sampling": lambda random: Sampling(**arguments(random, Sampling, prompt)),
    "snapshot": (None,),
    "stop": ([], ["a"], ["ab", "c"], ("x",), ["a"] * 20, [""]),
    "stop_tokens": ([], [5], [1, 2, 3], np.array([4]), {7}),
    "tool_choice": ("auto", "none"),
    "tools": (None, [_TOOL]),
}
"""Valid values by name, where the type does not tell."""
