"""Cases that hosts compute alike, and the bundles that they need.

    python -m tests.hosts.conformance  # writes tests/hosts/cases.json again, with Python's results

A case is one call. Sounds and images are written as `{"sound": [seconds, seed]}` and
`{"image": [height, width, channels, seed]}`. Results are as in JavaScript: offsets are UTF-16.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.test_windows import IDS
from tests.hosts import test_js_encoders, test_js_seq2seq, test_js_speech, test_js_windows
from tests.hosts.js_cases import Calls
from tests.runtime import tiny_decoder, tiny_encoder
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import sound, write_whisper

from ortolan.runtime import Sampling
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.engine import windows

CASES = Path(__file__).with_name("cases.json")

Case = dict[str, Any]

DIGITS = 6
"""Significant digits of numbers in the file; hosts agree on fewer."""


# --- bundles ------------------------------------------------------------------------------------


def decoder(folder: Path, **options: Any) -> Path:
    tokens = Tokens(bos=tiny_decoder.BOS, eos=(tiny_decoder.EOS,), suppressed=(5, 6))
    own: Case = {"tokens": tokens, "tokenizer": tiny_decoder.tokenizer_json()} | options
    return tiny_decoder.write_bundle(folder, **own).path


def windowed(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in test_js_windows.SMALL.items():
            patch.setattr(windows, name, value)
        return test_js_windows.exported("softcaps, alternating", folder)


def encoder(folder: Path, output: str, graph: str, *arguments: Any) -> Path:
    return test_js_encoders.bundle(folder, output, graph, *arguments)


def images(folder: Path) -> Path:
    return tiny_encoder.write_bundle(folder, kind="labels", image=tiny_encoder.IMAGE).path


BUNDLES: dict[str, Callable[[Path], Path]] = {
    "decoder": decoder,
    "recurrent decoder": partial(decoder, recurrent=True),
    "windowed decoder": windowed,
    "embeddings": partial(encoder, output="embedding", graph="embedding"),
    "labels": lambda folder: encoder(folder, "labels", "labels", ("no", "perhaps", "yes")),
    "tokens": lambda folder: encoder(folder, "token_labels", "logits", test_js_encoders.TAGS),
    "answers": lambda folder: encoder(folder, "spans", "logits", ("start", "end"), 2),
    "images": images,
    **{name: partial(test_js_seq2seq.exported, name) for name in ("marian", "t5")},
    "whisper": partial(test_js_speech.exported, write_whisper),
    "moonshine": partial(test_js_speech.exported, write_moonshine),
    "wav2vec2": partial(test_js_speech.exported, write_wav2vec2),
}
"""What writes each bundle into a folder, and returns its own."""


# --- cases --------------------------------------------------------------------------------------

TEXTS = ["a b c", "🙂 d", "e f g h i j k a b c d e", "b 日本 c"]

DRAWN: list[Case] = [
    {"temperature": 1.3, "seed": 1},
    {"temperature": 2.0, "top_k": 7, "top_p": 0.9, "seed": 2},
    {"temperature": 1.0, "min_p": 0.2, "seed": 2**53 - 1},
    {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.4},
]


def generation(bundle: str) -> Iterator[tuple[str, Case]]:
    for length in (1, 20, 150):
        ids = [3 + token % 61 for token in (IDS * 9)[:length]]
        yield "greedy", call(bundle, "generate", ids, max_new_tokens=40)


def decoding() -> Iterator[tuple[str, Case]]:
    """Calls of decoders."""
    yield from generation("decoder")
    for _, case in generation("recurrent decoder"):
        yield "recurrent states", case
    for _, case in generation("windowed decoder"):
        case["options"] |= {"temperature": 1.5, "seed": 3}
        yield "windows", case
    for sampling in DRAWN:
        yield "sampling", call("decoder", "generate", IDS[:9], max_new_tokens=40, **sampling)
    text = "def read(path):"
    for stop in ([], ["4`i"], ["ueZ", "C2C"], ["a", "e", "i", "o", "u"]):
        yield "stop texts", call("decoder", "generate", text, max_new_tokens=60, stop=stop)
    for ids, options in (
        ([3, 999], {}),
        ([3, -1], {}),
        ([3] * 1200, {}),
        ([3], {"stop_tokens": [97]}),
        ([3], {"max_new_tokens": 5, "min_new_tokens": 6}),
    ):
        yield "decoder errors", call("decoder", "generate", ids, **options)


def encoding() -> Iterator[tuple[str, Case]]:
    """Calls of encoders."""
    yield "embed", call("embeddings", "embed", TEXTS)
    yield "embed", call("embeddings", "embed", ["a " * 99], truncate=True)
    yield "embed", call("embeddings", "embed", ["a " * 99])
    yield "embed", call("labels", "embed", ["a"])
    yield "classify", call("labels", "classify", TEXTS)
    yield "classify", call("labels", "classify", [["a b", "c"], ["d", "e f g"]])
    yield "classify", call("embeddings", "classify", ["a"])
    for aggregation in ("none", "simple", "max"):
        yield "tokens", call("tokens", "classify_tokens", TEXTS, aggregation=aggregation)
    context = "a 🙂 b c, d e f g h i j k a b c d e f g h"
    yield "answers", call("answers", "answer", "a b", context)
    yield "answers", call("answers", "answer", "a b", context, stride=4, allow_none=True)
    sizes = [(7, 5, 3, 0), (33, 21, 4, 1), (64, 48, 1, 2)]
    yield "images", call("images", "classify", [{"image": [*size]} for size in sizes])


def reading() -> Iterator[tuple[str, Case]]:
    """Calls of encoder-decoders, and of models that transcribe."""
    searches: list[Case] = [{"beams": 3}, {"beams": 4, "n_best": 2, "length_penalty": 2.0}]
    for options in ({}, *searches):
        for name in ("marian", "t5"):
            sources = ["Hello!", "12 + 3"]
            group = "beam search" if options else "translation"
            yield group, call(name, "generate", sources, max_new_tokens=16, **options)
    whisper: list[tuple[float, Case]] = [
        *((0.3, {}), (2.2, {}), (4.0, {})),
        *((0.9, {"language": "de"}), (0.9, {"translate": True}), (0.9, {"timestamps": False})),
        (0.9, {"language": "xx"}),
    ]
    for seconds, options in whisper:
        yield "Whisper", call("whisper", "transcribe", {"sound": [seconds, 3]}, **options)
    for seconds in (0.05, 2.773, 31.0):
        yield "Moonshine", call("moonshine", "transcribe", {"sound": [seconds, 0]})
    for seconds in (0.01, 0.5, 31.0):
        yield "CTC", call("wav2vec2", "transcribe", {"sound": [seconds, 1]})


def call(bundle: str, method: str, *arguments: Any, **options: Any) -> Case:
    return {"bundle": bundle, "method": method, "arguments": [*arguments], "options": options}


def all_cases() -> list[Case]:
    """Calls without results, by group."""
    parts = (decoding(), encoding(), reading())
    return [{"group": group} | case for part in parts for group, case in part]


# --- results ------------------------------------------------------------------------------------


def given(value: Any) -> Any:
    """An argument, with the sounds and images that it describes."""
    match value:
        case {"sound": [seconds, seed]}:
            return sound(seconds, seed)
        case {"image": [*shape, seed]}:
            return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
        case list():
            return [given(one) for one in value]
    return value


def rounded(value: Any) -> Any:
    """A result as JSON, with fewer digits."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [rounded(one) for one in value]
    return value


def python_options(options: Case) -> Case:
    """Options as Python has them: those of sampling in an object."""
    fields = Sampling.__dataclass_fields__
    sampling = {name: value for name, value in options.items() if name in fields}
    others = {name: value for name, value in options.items() if name not in fields}
    return others | ({"sampling": Sampling(**sampling)} if sampling else {})


def write_bundles(folder: Path) -> dict[str, Path]:
    return {name: write(folder / name.replace(" ", "-")) for name, write in BUNDLES.items()}


def computed(cases: list[Case], bundles: dict[str, Path]) -> list[Case]:
    """The calls as JavaScript repeats them, with what Python returns or raises."""
    calls = {name: Calls(path, device="cpu") for name, path in bundles.items()}
    rows = []
    for case in cases:
        own = calls[case["bundle"]]
        arguments = map(given, case["arguments"])
        own.add(case["method"], *arguments, **python_options(case["options"]))
        rows.append(own.cases[-1])
    return rows


def main() -> None:
    """Write the cases with Python's results."""
    cases = all_cases()
    with tempfile.TemporaryDirectory() as folder:
        rows = computed(cases, write_bundles(Path(folder)))
    for case, row in zip(cases, rows, strict=True):
        case |= {key: rounded(row[key]) for key in ("result", "error") if key in row}
    CASES.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
