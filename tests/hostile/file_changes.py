"""Changes to files of a bundle other than graphs."""

import json
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.hostile.bundles import Files
from tests.hostile.documents import change_document, flip_bytes, logarithmic
from tests.nonsense import FLOATS, INTEGERS, STRINGS
from tests.runtime.jinja.test_bounds import HOSTILE

PARTS: dict[str, tuple[dict[str, Any], ...]] = {
    "normalizer": (
        {"type": "Replace", "pattern": {"String": ""}, "content": "ab"},
        {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": "(?<=a)*"}, "content": "x" * 200},
        {"type": "Prepend", "prepend": "x" * 100},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Precompiled", "precompiled_charsmap": "ALQCAACEAAAAAACAAQAAgMz8AgC4BQAA"},
        {"type": "BertNormalizer", "clean_text": True, "lowercase": None, "strip_accents": 3},
        {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}]},
        {"type": "ByteLevel"},
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True},
        {"type": "CharDelimiterSplit", "delimiter": "\0"},
        {"type": "FixedLength", "length": 0},
        {"type": "Punctuation", "behavior": "MergedWithNext"},
        {"type": "Digits", "individual_digits": True},
    ),
    "post_processor": (
        {"type": "BertProcessing", "sep": ["x", 2**32 - 1], "cls": ["y", 0]},
        {"type": "RobertaProcessing", "sep": ["x", 99], "cls": ["y", 98], "trim_offsets": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Sequence", "processors": []},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 40,
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [10**6] * 40, "tokens": ["x"] * 40}},
        },
    ),
    "decoder": (
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "BPEDecoder", "suffix": ""},
        {"type": "Metaspace", "replacement": "\U0001f600", "prepend_scheme": "first"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "y" * 200},
    ),
    "truncation": (
        {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5},
    ),
    "padding": (
        {
            "strategy": {"Fixed": 2**40},
            "direction": "Left",
            "pad_to_multiple_of": 0,
            "pad_id": 10**6,
            "pad_type_id": 0,
            "pad_token": "",
        },
    ),
    "added_tokens": ({"id": 2**31, "content": "", "special": True},),
}
"""Parts of a tokenizer.json that are expensive or invalid."""


def change_tokenizer(random: Random, files: Files) -> str:
    """Change a value, a part or some bytes of tokenizer.json."""
    data = files["tokenizer.json"]
    choice = random.random()
    if choice < 0.1:
        files["tokenizer.json"], summary = flip_bytes(random, data)
    elif choice < 0.6:
        files["tokenizer.json"], summary = change_document(random, data)
    else:
        document = json.loads(data)
        part = random.choice(list(PARTS))
        value = json.loads(json.dumps(random.choice(PARTS[part])))
        if random.random() < 0.5 and value:
            key = random.choice(list(value))
            value[key] = random.choice([*STRINGS, *INTEGERS, None, [], {}, "(" * 999])
        document[part] = [value] if part == "added_tokens" else value
        files["tokenizer.json"] = json.dumps(document).encode()
        summary = f"{part} is {value!r:.200}"
    return f"tokenizer.json: {summary}"


def change_template(random: Random, files: Files) -> str:
    """Write an expensive template, or repeat a piece of the old one elsewhere."""
    name = "chat_template.jinja"
    old = files[name].decode()
    if random.random() < 0.5:
        template = random.choice([*HOSTILE.values()])
        files[name] = template.encode("utf-8", "surrogatepass")
        return f"{name}: {template[:60]!r}"
    first, second = sorted(random.randrange(len(old) + 1) for _ in range(2))
    piece = old[first:second] * logarithmic(random, 1000)
    place = random.randrange(len(old) + 1)
    files[name] = (old[:place] + piece + old[place:]).encode()
    return f"{name}: characters {first} to {second} at {place}, {len(files[name])} bytes"


def change_arrays(random: Random, files: Files) -> str:
    """Change the list of the certificate's arrays, or values of one."""
    document = json.loads(files["certificate.json"])
    place = random.choice(document["arrays"])
    if random.random() < 0.4:
        key = random.choice(list(place))
        place[key] = random.choice([*INTEGERS, *STRINGS, [], [place["shape"]], [-1], [2**60, 2]])
        files["certificate.json"] = json.dumps(document).encode()
        return f"certificate.json: {key} of an array is {place[key]!r:.60}"
    data, count = bytearray(files["certificate.bin"]), int(np.prod(place["shape"]))
    numbers = np.frombuffer(data, place["dtype"], count, place["offset"])
    summary = _set_numbers(random, numbers)
    files["certificate.bin"] = bytes(data)
    return f"certificate.bin: {place['name']}, {summary}"


def change_weights(random: Random, files: Files) -> str:
    """Set numbers of weights or packed weights."""
    name = random.choice([n for n in files if n.endswith(".bin") and n != "certificate.bin"])
    data = bytearray(files[name])
    summary = _set_numbers(random, np.frombuffer(data, np.float32, len(data) // 4))
    files[name] = bytes(data)
    return f"{name}: {summary}"


def _set_numbers(random: Random, numbers: NDArray[Any]) -> str:
    if not numbers.size:
        return "empty"
    first = random.randrange(numbers.size)
    end = min(numbers.size, first + logarithmic(random, numbers.size))
    values = (*FLOATS, 1e38) if numbers.dtype.kind == "f" else INTEGERS
    with np.errstate(all="ignore"):
        numbers[first:end] = np.array(random.choice(values)).astype(numbers.dtype)
    return f"numbers {first} to {end} are {numbers[first]}"


def change_bytes(random: Random, files: Files) -> str:
    """Truncate, lengthen, empty or remove a file, or flip some bytes."""
    name = random.choice(sorted(files.keys() - {"manifest.json"}))
    data = files[name]
    match random.randrange(5):
        case 0:
            files[name] = data[: random.randrange(len(data) + 1)]
        case 1:
            files[name] = data + bytes(logarithmic(random, 1 << 20))
        case 2:
            files[name] = b""
        case 3:
            del files[name]
            return f"{name} removed"
        case 4:
            files[name], summary = flip_bytes(random, data)
            return f"{name}: {summary}"
    return f"{name} of {len(files[name])} in place of {len(data)} bytes"
