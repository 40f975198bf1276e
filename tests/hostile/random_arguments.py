"""Arguments of requests: mostly valid, sometimes anything."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.nonsense import ARRAYS, NUMBERS, PROMPTS

from ortolan.runtime import Grammar, PromptLookup, Sampling


class CallersError(Exception):
    """Raised by a function in the arguments; must reach the caller."""


def _raising() -> bool:
    raise CallersError("from the caller")


def _generator(random: Random) -> Iterator[int]:
    return (random.randrange(97) for _ in range(3))


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


def maybe(random: Random, right: Callable[[], Any], wrong: float = 0.06) -> Any:
    """Return the right value, or with some probability anything."""
    return anything(random) if random.random() < wrong else right()


def random_image(random: Random) -> Any:
    """Return pixels of some size, or a file that is no image."""
    shape = (random.choice([8, 8, 1, 30]), random.choice([8, 3]), random.choice([3, 3, 1, 4]))
    pixels = np.full(shape, random.randrange(256), np.uint8)
    return random.choice([pixels, pixels, pixels, pixels.astype("f"), b"GIF89a", Path("/nowhere")])


def random_sound(random: Random) -> Any:
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

    def right() -> Any:
        count = random.choice([1, 2, 3, 5, 10, 20, 200, 1200] if random.random() < 0.3 else [1, 4])
        ids = [random.randrange(5, 15) for _ in range(count)]
        if random.random() < 0.05:
            images = [{"image": maybe(random, lambda: random_image(random))}] * random.choice(
                [1, 2]
            )
            return [*images, maybe(random, lambda: "a b")]
        if random.random() < 0.05:
            return [*ids, random.choice([-1, 16, 97, 2**31, 2**63])]
        forms: tuple[Any, ...] = (ids, tuple(ids), np.array(ids), np.array(ids, "<i8"))
        text = random.choice(PROMPTS) if random.random() < 0.3 else "a b c"
        return random.choice([text, *forms])

    return maybe(random, right)


def sampling_fields(random: Random) -> dict[str, Any]:
    fields: dict[str, Callable[[], Any]] = {
        "temperature": lambda: random.choice([0, 0.5, 1, 2.0, 1e-30, 1e30]),
        "top_k": lambda: random.choice([0, 1, 5, 97, 10**9]),
        "top_p": lambda: random.choice([1.0, 0.5, 1e-300]),
        "min_p": lambda: random.choice([0.0, 0.5, 1.0]),
        "repetition_penalty": lambda: random.choice([1.0, 1.3, 1e-30, 1e30]),
        "presence_penalty": lambda: random.uniform(-2, 2),
        "frequency_penalty": lambda: random.uniform(-2, 2),
        "logit_bias": lambda: {random.randrange(99): random.choice([-100, 5, 1e38, -3e38])},
        "seed": lambda: random.randrange(2**63),
    }
    chosen = random.sample(list(fields), random.choice([0, 1, 2, 9]))
    return {name: maybe(random, fields[name], 0.05) for name in chosen}


def options(random: Random) -> dict[str, Any]:
    """Return some options of a request, nearly always with a limit of tokens."""
    event = threading.Event()
    valid: dict[str, Callable[[], Any]] = {
        "min_new_tokens": lambda: random.choice([0, 1, 3]),
        "sampling": lambda: Sampling(**sampling_fields(random)),
        "temperature": lambda: random.choice([0, 0.7]),
        "stop": lambda: random.choice([[], ["a"], ["ab", "c"], ("x",), ["a"] * 20, [""]]),
        "stop_tokens": lambda: random.choice([[], [5], [1, 2, 3], np.array([4]), {7}]),
        "ignore_eos": lambda: random.choice([True, False]),
        "logprobs": lambda: random.choice([None, 0, 1, 20, 21]),
        "prompt_logprobs": lambda: random.choice([None, 0, 1, 20, 21]),
        "adapter": lambda: random.choice([None, "a"]),
        "grammar": lambda: _grammar(random),
        "cancel": lambda: random.choice([None, event, lambda: False, lambda: True, _raising]),
    }
    chosen = random.sample(list(valid), random.choice([0, 0, 1, 1, 2, 4]))
    values = {name: maybe(random, valid[name], 0.12) for name in chosen}
    if random.random() < 0.97:
        values["max_new_tokens"] = maybe(random, lambda: random.choice([1, 2, 5, 12]), 0.08)
    if random.random() < 0.02:
        values[random.choice(["max_tokens", "max_new_token", "x", "\ud800", ""])] = anything(random)
    return values


def _grammar(random: Random) -> Grammar:
    match random.randrange(4):
        case 0:
            return Grammar.regex(maybe(random, lambda: random.choice(["[ab]{1,5}", "a|b", "x*"])))
        case 1:
            schema = random.choice([{"type": "integer"}, {"enum": ["a"]}, {"type": "null"}])
            return Grammar.json_schema(maybe(random, lambda: schema))
        case 2:
            return Grammar.lark(maybe(random, lambda: 'start: "a" | "b"'))
    return Grammar(maybe(random, lambda: "x"))


def draft(random: Random) -> Any:
    """Return a source of drafts, `None`, or anything."""
    return maybe(random, lambda: random.choice([None, None, PromptLookup()]), 0.05)
