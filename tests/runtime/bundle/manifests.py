"""Manifests of each kind of bundle, and edits after which they must be rejected.

Types and ranges of single fields are in the published JSON Schemas, which `test_manifest.py`
compares with the structs; the edits here are for rules between fields, and for other hosts.
"""

import copy
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.runtime import tiny_bundle
from tests.runtime.damaged_bundles import put

from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import decode, encode

Document = dict[str, Any]
Change = Callable[[Any], object]

MANIFEST = tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model()))
DATA = encode(MANIFEST)

PICTURE: Document = {
    "channels": 3,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "scale": 1 / 255,
    "resample": "bilinear",
}

SOUND: Document = {"rate": 16_000, "window": 400}

SOURCES: dict[str, Document] = {
    "image": PICTURE | {"kind": "image", "height": 8, "width": 8},
    "patches": PICTURE
    | {
        "kind": "patches",
        "patch": 4,
        "patches": 64,
        "merge": 2,
        "frames": 1,
        "layout": "channels_last",
        "size": {"by": "whole_squares", "least": 256, "most": 1024},
        "table": {"side": 4, "interpolation": "antialiased"},
    },
    "wave": SOUND | {"kind": "wave", "hop": 320, "vectors": 16, "normalized": True},
    "chunks": SOUND
    | {"kind": "chunks", "hop": 160, "bins": 8, "frames": 128, "chunk": 64, "stride": 8},
}

CROSS: Document = {
    "name": "0.cross.key",
    "input": "cross.0.key",
    "output": "cross.0.key",
    "shape": ["batch", 2, "source", 8],
    "dtype": "float32",
    "update": "source",
}

TEXTS: Document = {"encoder": "0" * 64, "scale": 100.0, "bias": -16.5, "scores": "sigmoid"}


def read(document: Document) -> Manifest:
    return decode(json.dumps(document).encode())


def changed(change: Change, kind: str = "decoder") -> bytes:
    """Return an edited manifest."""
    document = document_of(kind)
    change(document)
    return json.dumps(document).encode()


def put_all(document: Any, values: dict[str, object]) -> None:
    """Set the values at several paths such as `states.0.shape`."""
    for path, value in values.items():
        put(*(int(key) if key.isdigit() else key for key in path.split(".")), value=value)(document)


def setting(values: dict[str, object]) -> Change:
    return partial(put_all, values=values)


def shortened(text: str) -> str:
    return text if len(text) < 60 else f"{text[:28]}...{text[-28:]}"


def rows(paths: dict[str, list[Any]]) -> dict[str, Change]:
    """Return an edit for each value of each path."""
    edits = {
        f"{path} = {shortened(repr(value))}": setting({path: value})
        for path, values in paths.items()
        for value in values
    }
    assert len(edits) == sum(map(len, paths.values())), "two rows with one name"
    return edits


def document_of(kind: str) -> Document:
    """Return a manifest with all optional fields.

    Args:
        kind: `decoder`, `encoder-decoder`, or an encoder by its source: `encoder` (of texts),
            `image`, `patches`, `wave`; `compared` embeds images and compares them with texts.
    """
    document: Document = json.loads(DATA)
    roles = {"decoder": ["decoder"], "encoder-decoder": ["encoder", "decoder"]}.get(
        kind, ["encoder"]
    )
    document["kind"] = kind if "decoder" in roles else "encoder"
    document["graphs"] = {role: {"file": f"{role}.onnx"} for role in (*roles, "attention")}
    sides = {
        "decoder": ["decoder.0.self"],
        "encoder-decoder": ["encoder.0.self", "decoder.0.cross"],
    }
    document["attention_maps"] = sides.get(kind, ["encoder.0.self"])
    listed = {file["name"] for file in document["files"]}
    document["files"] += [
        {"name": f"{role}.onnx", "size": 1, "sha256": "0" * 64}
        for role in document["graphs"]
        if f"{role}.onnx" not in listed
    ]
    document["files"].sort(key=lambda file: file["name"])
    if kind == "decoder":
        return document
    document["source"] = {"kind": "text", "max_tokens": document["context_length"]}
    if kind == "encoder-decoder":
        document["tokens"] |= {"start": 0, "forced_first": 4, "forced_last": 2, "suppressed": [0]}
        document["states"].append(copy.deepcopy(CROSS))
        return document
    document |= {"states": [], "output": {"kind": "labels", "size": 2, "labels": ["no", "yes"]}}
    document["host"]["cache"] = None
    if kind == "encoder":
        return document
    source = SOURCES["image" if kind == "compared" else kind]
    document |= {"source": copy.deepcopy(source), "tokenizer": None, "tokens": {}}
    if kind == "wave":
        symbols = [" ", *(chr(97 + number) for number in range(document["vocab_size"] - 1))]
        document["output"] = {"kind": "ctc", "size": len(symbols), "labels": symbols}
        document["tokens"] = {"pad": 2}
    else:
        document["vocab_size"] = 1
    if kind == "compared":
        document["output"], document["texts"] = {"kind": "embedding", "size": 32}, TEXTS.copy()
    return document


DECODER: dict[str, Change] = rows(
    {
        "schema": [5, 0, 2, 3, True],
        "kind": ["encoder"],
        "attention": ["standard"],
        "devices": [["cpu", "cpu"]],
        "context_length": [16.0],
        "vocab_size": [0],
        "graphs": [{"prefill": {"file": "decoder.onnx"}}, {}],
        "graphs.encoder": [{"file": "certificate.bin"}],
        "graphs.decoder.sequence": [2000],
        "states.0.dtype": ["float64"],
        "states.0.update": ["replace"],
        "states.0.shape": [
            ["batch", 2, 16, 8],
            ["batch", "batch", "capacity", 8],
            ["batch", 2, "capacity", "width"],
            ["batch", 0, "capacity", 8],
            ["batch", "capacity", limits.MAX_DIMENSION + 1],
            ["batch", "capacity"] + [1] * (limits.MAX_STATE_RANK - 1),
        ],
        "states.1.name": ["0.key"],
        "states.1.input": ["past_key_values.0.key"],
        "states.1.output": ["present.0.key"],
        "weights": [["decoder.onnx"], ["other.bin"]],
        "tokens.eos": [[2, 97]],
        "tokens.bos": [97],
        "tokens.pad": [97],
        "tokens.start": [1],
        "tokenizer": ["decoder.onnx"],
        "certificate": [None],
        "files.0.name": ["../x", "manifest.json"],
        "files.0.sha256": ["0" * 64 + "\n"],
        "host": [None],
        "host.cache": [None],
        "host.session.config_entries": [{"session.register_custom_ops": "1"}, {"mlas.a b": "1"}],
        "host.session.environment": [{"LD_PRELOAD": "1"}, {"ORT_LOAD_CONFIG_FROM_MODEL": "1"}],
        **{f"{part}command": ["rm"] for part in ("", "host.", "states.0.", "provenance.")},
    }
) | {
    "a file is not listed": lambda document: document["files"].pop(-1),
    "files not sorted": lambda document: document["files"].reverse(),
    "a file twice": lambda document: document["files"].insert(0, document["files"][0]),
    "no states": lambda document: document["states"].clear(),
    "no host": lambda document: document.pop("host"),
}
"""Edits of the manifest of any decoder; hosts in other languages read them, too."""

LABELS: Document = {"kind": "labels", "size": 2, "labels": ["no", "yes"]}

QUANTIZED: Document = {
    **{"name": "head", "bits": 4, "group": 32, "symmetric": True, "method": "rtn", "error": 0.1}
}

HIDDEN: Document = {"size": 32, "head": "5" * 64}

KINDS: dict[str, dict[str, Change]] = {
    "decoder": rows(
        {
            "source": [{"kind": "text", "max_tokens": 16}],
            "output": [{"kind": "states", "size": 4}],
            "states.1": [CROSS],
            "attention_maps": [["encoder.0.self"], ["decoder.0.cross"]],
            "texts": [TEXTS],
            "graphs.both_ways": [{"file": "certificate.bin"}],
            "graphs": [
                {
                    "prefill": {"file": "decoder.onnx", "sequence": 1},
                    "decode": {"file": "certificate.bin"},
                },
                {
                    "prefill": {"file": "decoder.onnx", "min_new_tokens": 3},
                    "decode": {"file": "certificate.bin", "sequence": 1},
                },
            ],
            "states.0.shape": [[2, "batch", "capacity", 8]],
            "quantized": [[QUANTIZED] * 2],
            "files.3.size": [limits.MAX_GRAPH_BYTES + 1],
            "files.4.size": [limits.MAX_WHOLE_FILE_BYTES + 1],
        }
    ),
    "encoder": rows(
        {
            "source": [None, SOURCES["image"], SOURCES["patches"]],
            "source.max_tokens": [15],
            "source.default_prompt": ["query"],
            "source.padding": [24],
            "output": [
                None,
                {"kind": "logits", "size": 23},
                {"kind": "ctc", "size": 24},
                *(LABELS | {"size": 3}, LABELS | {"labels": []}, LABELS | {"kind": "states"}),
            ],
            "states": [[CROSS]],
            "graphs.encoder.sequence": [1],
            "graphs.encoder.min_new_tokens": [2],
            "graphs.decoder": [{"file": "certificate.bin"}],
            "tokens.start": [1],
            "attention_maps": [["decoder.0.self"]],
            "texts": [TEXTS],
            "hidden_states": [HIDDEN],
        }
    ),
    "image": rows(
        {
            "source.mean": [[0.5]],
            "source.std": [[0.5] * 4],
            "tokenizer": ["tokenizer.json"],
        }
    ),
    "patches": rows(
        {
            "source.mean": [[0.5]],
            "source.std": [[0.5] * 4],
            "source.patches": [60],
            "source.merge": [3],
            "source.frames": [2],
            "source.size": [
                {"by": "whole_squares", "least": 2, "most": 1025},
                {"by": "whole_squares", "least": 3, "most": 2},
            ],
            "tokenizer": ["tokenizer.json"],
        }
    )
    | {
        "a background behind alpha": setting(
            {
                "source.channels": 2,
                "source.mean": [0.5] * 2,
                "source.std": [0.5] * 2,
                "source.background": "white",
            }
        )
    },
    "compared": rows({"output": [LABELS]}),
    "wave": rows(
        {
            "source.vectors": [15],
            "source.window": [5121],
            "tokenizer": ["tokenizer.json"],
            "tokens": [{}, {"pad": 24}],
            "output.size": [23],
            "output.labels": [["a"]],
            "output": [{"kind": "ctc", "size": 23}, {"kind": "logits", "size": 24}],
        }
    )
    | {
        "two hours and more": setting(
            {
                "context_length": 200,
                "source.rate": 1000,
                "source.hop": 65_536,
                "source.vectors": 200,
            }
        )
    },
    "encoder-decoder": rows(
        {
            "source": [None, *(SOURCES[name] for name in ("patches", "chunks"))],
            "source.padding": [1],
            "source.types": [2],
            "output": [{"kind": "states", "size": 4}],
            "states.2.shape": [["batch", 2, "capacity", 8]],
            "states.2.dtype": ["int8"],
            "tokens.start": [None, 24],
            "tokens.forced_first": [24],
            "tokens.forced_last": [24],
            "tokens.suppressed": [[1, 24]],
            "attention_maps": [[], ["decoder.0.self"] * 2],
            "hidden_states": [HIDDEN],
        }
    )
    | {
        "no vectors": setting({"source": SOURCES["wave"] | {"vectors": 1}}),
        "no state of the source": lambda document: document["states"].pop(),
        "no encoder": lambda document: document["graphs"].pop("encoder"),
        "no graph of attention maps": lambda document: document["graphs"].pop("attention"),
    },
}
"""Edits of the manifest of each kind, by the argument of `document_of`."""
