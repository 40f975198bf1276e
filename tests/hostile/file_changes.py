"""Changes to files of a bundle other than graphs."""

import io
import json
import zipfile
from random import Random
from typing import Any

import numpy as np
from tests.hostile.bundles import Files
from tests.hostile.documents import change_document, flip_bytes, logarithmic
from tests.nonsense import FLOATS, INTEGERS, STRINGS

TEMPLATES = (
    "{{ 'a' * 2000000000 }}",
    "{% set n = 2000000000 %}{{ 'a' * n }}",
    "{{ 9 ** 8 ** 7 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set s = namespace(v='a') %}{% for i in range(40) %}{% set s.v = s.v + s.v %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum(n=100000) }}",
    "{{ 'a'.center(2000000000) }}",
    "{{ '%2000000000d' % 1 }}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ messages[0].content.__class__ }}",
    "{{ raise_exception('\x1b[2K') }}",
    "{% include 'x' %}",
    "{{ messages | map(attribute='content') | list | tojson(indent=2000000000) }}",
    "{{ messages[0]['content'].format(messages) }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "\ufffe{{ undefined_name.a.b }}",
)

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
        template = random.choice(TEMPLATES)
        files[name] = template.encode("utf-8", "surrogatepass")
        return f"{name}: {template[:60]!r}"
    first, second = sorted(random.randrange(len(old) + 1) for _ in range(2))
    piece = old[first:second] * logarithmic(random, 1000)
    place = random.randrange(len(old) + 1)
    files[name] = (old[:place] + piece + old[place:]).encode()
    return f"{name}: characters {first} to {second} at {place}, {len(files[name])} bytes"


def change_arrays(random: Random, files: Files) -> str:
    """Change the certificate's arrays: shape, type or value; flipped bytes; a zip bomb."""
    name, choice = "certificate.npz", random.random()
    if choice < 0.25:
        files[name], summary = flip_bytes(random, files[name])
        return f"{name}: {summary}"
    with np.load(io.BytesIO(files[name])) as stored:
        arrays: dict[str, Any] = {key: stored[key] for key in stored.files}
    key = random.choice(list(arrays))
    if choice < 0.3:
        files[name] = _archive({key: bytes(100 << 20)}, zipfile.ZIP_DEFLATED)
        return f"{name}: {key} of 100 MiB of zeros"
    summary = _changed_array(random, arrays, key)
    files[name] = _archive({key: _saved(array) for key, array in arrays.items()})
    return f"{name}: {summary}"


def _archive(contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive as of `np.savez`, but without timestamps."""
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        for key, data in contents.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), data, compression)
    return stream.getvalue()


def _saved(array: Any) -> bytes:
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


def _changed_array(random: Random, arrays: dict[str, Any], key: str) -> str:
    array = arrays[key]
    with np.errstate(all="ignore"):
        match random.randrange(5):
            case 0:
                arrays[key] = array.astype(random.choice([np.float64, np.int64, np.int8, object]))
                return f"{key} of type {arrays[key].dtype}"
            case 1:
                arrays[key] = random.choice([array[:0], array[None], array.ravel(), array[1:]])
                return f"{key} of shape {arrays[key].shape}"
            case 2:
                arrays[random.choice([f"{key}2", "../x", "values", "images"])] = arrays.pop(key)
                return f"{key} renamed"
        flat = array.reshape(-1).copy()
        values = FLOATS if array.dtype.kind == "f" else INTEGERS
        if flat.size:
            place = slice(None) if random.random() < 0.2 else random.randrange(flat.size)
            flat[place] = np.array(random.choice(values)).astype(array.dtype)
        arrays[key] = flat.reshape(array.shape)
        return f"{key} with another value"


def change_weights(random: Random, files: Files) -> str:
    """Flip bytes of weights or packed weights, or set numbers."""
    names = [name for name in files if name.endswith(".bin")]
    name = random.choice(names)
    data = files[name]
    if random.random() < 0.4 or len(data) < 8:
        files[name], summary = flip_bytes(random, data, most=64)
        return f"{name}: {summary[:80]}"
    numbers = np.frombuffer(data[: len(data) // 4 * 4], np.float32).copy()
    first = random.randrange(len(numbers))
    end = min(len(numbers), first + logarithmic(random, len(numbers)))
    with np.errstate(all="ignore"):
        numbers[first:end] = random.choice([*FLOATS, 1e38])
    files[name] = numbers.tobytes() + data[len(numbers) * 4 :]
    return f"{name}: numbers {first} to {end} are {numbers[first]}"


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
