"""Fields that each kind of bundle must have, and must not have."""

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.runtime.bundle.test_manifest import MANIFEST, Change
from tests.runtime.damaged_bundles import put

from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import Manifest, Output, Tokens
from ortolan.runtime.bundle.manifest_file import decode
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.bundle.sources import ImageSource, PatchSource, TextSource, WaveSource
from ortolan.runtime.errors import ManifestError

Document = dict[str, Any]

PIXELS: Document = {
    "kind": "image",
    "channels": 3,
    "height": 8,
    "width": 8,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "scale": 1 / 255,
    "resample": "bilinear",
}


WAVE: Document = {
    "kind": "wave",
    "rate": 16_000,
    "window": 400,
    "hop": 320,
    "vectors": 16,
    "normalized": True,
}


PATCHES: Document = {
    "kind": "patches",
    "channels": 3,
    "patch": 4,
    "patches": 64,
    "merge": 2,
    "frames": 1,
    "layout": "channels_last",
    "size": {"by": "whole_squares", "least": 256, "most": 1024},
    "table": {"side": 4, "interpolation": "antialiased"},
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "scale": 1 / 255,
    "resample": "bilinear",
}


CHUNKS: Document = {
    "kind": "chunks",
    "rate": 16_000,
    "window": 400,
    "hop": 160,
    "bins": 8,
    "frames": 128,
    "chunk": 64,
    "stride": 8,
}


def document_of(kind: str) -> Document:
    """A manifest of this kind with all optional fields."""
    document: Document = json.loads(msgspec.json.encode(MANIFEST))
    graphs = {"decoder": {"file": "decoder.onnx"}, "encoder": {"file": "encoder.onnx"}}
    roles = {"decoder": ["decoder"], "encoder": ["encoder"]}.get(kind, ["encoder", "decoder"])
    document["kind"] = kind
    document["graphs"] = {role: graphs[role] for role in roles}
    document["graphs"]["attention"] = {"file": "attention.onnx"}
    sides = {"decoder": ["decoder.0.self"], "encoder": ["encoder.0.self"]}
    document["attention_maps"] = sides.get(kind, ["encoder.0.self", "decoder.0.cross"])
    document["files"] += [
        {"name": f"{role}.onnx", "size": 1, "sha256": "0" * 64}
        for role in ("attention", "encoder")
        if kind != "decoder" or role == "attention"
    ]
    document["files"].sort(key=lambda file: file["name"])
    if kind != "decoder":
        document["source"] = {"kind": "text", "max_tokens": document["context_length"]}
    if kind == "encoder":
        document["states"] = []
        document["host"]["cache"] = None
        document["output"] = {"kind": "labels", "size": 2, "labels": ["no", "yes"]}
    if kind == "encoder-decoder":
        document["tokens"] |= {"start": 0, "forced_first": 4, "forced_last": 2, "suppressed": [0]}
        document["states"].append(copy.deepcopy(SOURCE))
    return document


SOURCE: Document = {
    "name": "0.cross.key",
    "input": "cross.0.key",
    "output": "cross.0.key",
    "shape": ["batch", 2, "source", 8],
    "dtype": "float32",
    "update": "source",
}


def read(document: Document) -> Manifest:
    return decode(json.dumps(document).encode())


def image(document: Document) -> None:
    document |= {"source": copy.deepcopy(PIXELS), "tokenizer": None, "vocab_size": 1, "tokens": {}}


def patches(**fields: Any) -> Change:
    """A source of patches with other fields."""

    def change(document: Document) -> None:
        image(document)
        document["source"] = copy.deepcopy(PATCHES) | fields

    return change


def images(**changes: object) -> Change:
    def change(document: Document) -> None:
        image(document)
        document["source"] |= changes

    return change


def wave(document: Document) -> None:
    symbols = [" ", *(chr(97 + number) for number in range(document["vocab_size"] - 1))]
    document |= {"source": copy.deepcopy(WAVE), "tokenizer": None, "tokens": {"pad": 2}}
    document["output"] = {"kind": "ctc", "size": len(symbols), "labels": symbols}


def waves(*path: str, value: object) -> Change:
    def change(document: Document) -> None:
        wave(document)
        put(*path, value=value)(document)

    return change


def compared(**changes: object) -> Change:
    """An encoder that embeds images and compares them with texts."""

    def change(document: Document) -> None:
        image(document)
        document["output"] = {"kind": "embedding", "size": 32}
        document["texts"] = TEXTS | changes

    return change


TEXTS: Document = {"encoder": "0" * 64, "scale": 100.0, "bias": -16.5, "scores": "sigmoid"}


def test_a_comparison_of_images_with_texts_is_read() -> None:
    document = document_of("encoder")
    compared()(document)
    manifest = read(document)
    assert manifest.comparison == Comparison(
        encoder="0" * 64, scale=100.0, bias=-16.5, scores="sigmoid"
    )
    assert manifest.takes.endswith("and texts to compare with")


def test_padding_of_texts_is_read() -> None:
    document = document_of("encoder")
    put("source", "padding", value=0)(document)
    source = read(document).source
    assert isinstance(source, TextSource)
    assert source.filler == 0


def long_waves(document: Document) -> None:
    wave(document)
    document["context_length"] = 200
    document["source"] |= {"rate": 1000, "hop": 65_536, "vectors": 200}


def test_everything_an_encoder_decoder_has_is_read() -> None:
    manifest = read(document_of("encoder-decoder"))
    assert manifest.kind == "encoder-decoder"
    assert manifest.source == TextSource(max_tokens=16)
    assert manifest.states[-1].shape == ("batch", 2, "source", 8)
    assert manifest.tokens == Tokens(
        bos=1, eos=(2, 3), pad=0, start=0, forced_first=4, forced_last=2, suppressed=(0,)
    )
    assert manifest.attention_maps == ("encoder.0.self", "decoder.0.cross")


def test_encoder_of_images_is_read() -> None:
    document = document_of("encoder")
    image(document)
    manifest = read(document)
    assert isinstance(manifest.source, ImageSource)
    assert manifest.source.std == (0.5, 0.5, 0.5)
    assert manifest.output == Output(kind="labels", size=2, labels=("no", "yes"))


def test_encoder_of_patches_is_read() -> None:
    document = document_of("encoder")
    patches()(document)
    manifest = read(document)
    source = manifest.source
    assert isinstance(source, PatchSource)
    assert (source.square, source.vectors, source.numbers) == (8, 16, 48)
    assert [source.length(8 * rows, 24) for rows in (1, 2, 5)] == [3, 6, 15]
    assert manifest.takes == "images, RGB, of up to 64 patches of 4 by 4 pixels"


@pytest.mark.parametrize("labels", [True, False])
def test_encoder_of_waves_is_read(labels: bool) -> None:
    document = document_of("encoder")
    wave(document)
    if not labels:
        document |= {"tokens": {}, "output": document["output"] | {"labels": []}}
    manifest = read(document)
    source, output = manifest.source, manifest.output
    assert isinstance(source, WaveSource)
    assert (source.samples, source.seconds, source.step_s) == (5120, 0.32, 0.02)
    assert [source.length(samples) for samples in (0, 399, 400, 719, 720)] == [0, 0, 1, 1, 2]
    assert source.length(source.reach(7)) == 7
    assert output is not None
    assert len(output.labels) == 24 * labels
    assert manifest.takes == "sounds of at most 0.32 seconds"
    assert manifest.gives == "logits of 24 symbols for each vector of a sound"


def test_encoder_decoder_of_waves_has_a_tokenizer_and_a_context_of_its_own() -> None:
    document = document_of("encoder-decoder") | {"source": WAVE | {"vectors": 1250}}
    manifest = read(document)
    assert isinstance(manifest.source, WaveSource)
    assert manifest.source.vectors > manifest.context_length
    assert manifest.tokenizer is not None


def test_decoder_with_maps_is_read() -> None:
    assert read(document_of("decoder")).attention_maps == ("decoder.0.self",)


def test_states_that_grow_may_be_codes() -> None:
    document = document_of("decoder")
    put("states", 0, "dtype", value="int8")(document)
    assert read(document).states[0].unit_bytes == 16


@pytest.mark.parametrize("kind", ["states", "embedding"])
def test_encoder_without_labels_is_read(kind: str) -> None:
    document = document_of("encoder")
    document["output"] = {"kind": kind, "size": 32}
    output = read(document).output
    assert output is not None
    assert output.labels == ()


@pytest.mark.parametrize(
    ("kind", "change", "part"),
    [
        ("decoder", put("source", value={"kind": "text", "max_tokens": 16}), "`source`"),
        ("decoder", put("output", value={"kind": "states", "size": 4}), "`output`"),
        ("decoder", put("states", 1, value=SOURCE), "'0.cross.key'"),
        ("decoder", put("tokens", "start", value=1), "`start`"),
        ("decoder", put("attention_maps", value=["encoder.0.self"]), "'encoder.0.self'"),
        ("decoder", put("attention_maps", value=["decoder.0.cross"]), "'decoder.0.cross'"),
        ("encoder", put("source", value=None), "`source`"),
        ("encoder", put("output", value=None), "`output`"),
        ("encoder", put("states", value=[SOURCE]), "'0.cross.key'"),
        ("encoder", put("source", "max_tokens", value=15), "15"),
        ("encoder", put("source", "default_prompt", value="query"), "got query"),
        ("encoder", put("graphs", "encoder", "sequence", value=1), "'encoder'"),
        ("encoder", put("graphs", "encoder", "min_new_tokens", value=2), "'encoder'"),
        ("encoder", put("graphs", "decoder", value={"file": "certificate.bin"}), "decoder"),
        ("encoder", put("output", "size", value=3), "3 labels"),
        ("encoder", put("output", "labels", value=[]), "2 labels"),
        ("encoder", put("output", "kind", value="states"), "0 labels"),
        ("encoder", put("output", value={"kind": "logits", "size": 23}), "24 logits"),
        ("encoder", put("tokens", "start", value=1), "`start`"),
        ("encoder", put("attention_maps", value=["decoder.0.self"]), "'decoder.0.self'"),
        ("encoder", images(mean=[0.5]), "3 values of `mean`"),
        ("encoder", images(std=[0.5] * 4), "3 values of `std`"),
        ("encoder", put("source", value=PIXELS), "tokenizer.json"),
        ("encoder", images(channels=0), "channels"),
        ("encoder", images(height=0), "height"),
        ("encoder", images(std=[0.5, 0.0, 0.5]), "std"),
        ("encoder", images(scale=0), "scale"),
        ("encoder", images(resample="area"), "area"),
        ("encoder", images(kind="sound"), "sound"),
        ("encoder", images(crop=4), "crop"),
        ("encoder", patches(mean=[0.5]), "3 values of `mean`"),
        ("encoder", patches(std=[0.5] * 4), "3 values of `std`"),
        ("encoder", patches(patches=60), "squares of 2 by 2"),
        ("encoder", patches(merge=3), "squares of 3 by 3"),
        ("encoder", patches(frames=2), "channels_first"),
        ("encoder", patches(patch=2000), "patch"),
        ("encoder", patches(size={"by": "whole_squares", "least": 2, "most": 1025}), "1024"),
        ("encoder", patches(size={"by": "whole_squares", "least": 3, "most": 2}), "`least`"),
        ("encoder", patches(size={"by": "area"}), "area"),
        ("encoder", patches(table={"side": 0, "interpolation": "corners"}), "side"),
        ("encoder", patches(table={"side": 4, "interpolation": "cubic"}), "cubic"),
        ("encoder", patches(channels=2, mean=[0] * 2, std=[1] * 2, background="white"), "alpha"),
        ("encoder", put("source", value=PATCHES), "tokenizer"),
        ("encoder-decoder", put("source", value=PATCHES), "without decoder"),
        ("encoder", put("texts", value=TEXTS), "`texts`"),
        ("decoder", put("texts", value=TEXTS), "`texts`"),
        ("encoder", compared(scale=0), "scale"),
        ("encoder", compared(scale=1e5), "scale"),
        ("encoder", compared(bias=-1e5), "bias"),
        ("encoder", compared(scores="none"), "scores"),
        ("encoder", compared(encoder="0"), "encoder"),
        ("encoder", put("source", "padding", value=24), "'source.padding'"),
        ("encoder-decoder", put("source", "padding", value=1), "padding"),
        ("encoder", put("output", "kind", value="odds"), "output.kind"),
        ("encoder", waves("source", "vectors", value=15), "15 of 320 samples"),
        ("encoder", waves("source", "window", value=5121), "a window of 5121"),
        ("encoder", waves("source", "hop", value=0), "hop"),
        ("encoder", long_waves, "7200 seconds"),
        ("encoder", waves("source", "rate", value=10), "rate"),
        ("encoder", waves("source", "normalized", value=1), "normalized"),
        ("encoder", waves("source", "bins", value=80), "bins"),
        ("encoder", waves("tokenizer", value="tokenizer.json"), "no tokenizer"),
        ("encoder", waves("output", "size", value=23), "0 labels"),
        ("encoder", waves("output", "labels", value=["a"]), "0 labels"),
        ("encoder", waves("tokens", value={}), "the blank"),
        ("encoder", waves("tokens", "pad", value=24), "'pad'"),
        ("encoder", waves("output", value={"kind": "ctc", "size": 23}), "24 logits per vector"),
        ("encoder", waves("output", value={"kind": "logits", "size": 24}), "24 logits"),
        ("encoder", put("output", value={"kind": "ctc", "size": 24}), "a wave"),
        ("encoder-decoder", put("source", value=CHUNKS), "without a decoder"),
        ("encoder-decoder", put("source", value=WAVE | {"vectors": 1}), "of one at least"),
        ("encoder", put("kind", value="translator"), "kind"),
        ("encoder-decoder", put("source", value=None), "`source`"),
        ("encoder-decoder", put("output", value={"kind": "states", "size": 4}), "`output`"),
        ("encoder-decoder", lambda document: document["states"].pop(), "'source'"),
        ("encoder-decoder", put("states", -1, "shape", value=["batch", 2, "capacity", 8]), "once"),
        ("encoder-decoder", put("states", -1, "dtype", value="int8"), "got int8"),
        ("encoder-decoder", put("tokens", "start", value=None), "`start`"),
        ("encoder-decoder", put("tokens", "start", value=24), "'start'"),
        ("encoder-decoder", put("tokens", "forced_first", value=24), "'forced_first'"),
        ("encoder-decoder", put("tokens", "forced_last", value=24), "'forced_last'"),
        ("encoder-decoder", put("tokens", "suppressed", value=[1, 24]), "'suppressed'"),
        ("encoder-decoder", put("attention_maps", value=[]), "'attention'"),
        ("encoder-decoder", put("attention_maps", value=["decoder.0.self"] * 2), "twice"),
        ("encoder-decoder", lambda document: document["graphs"].pop("encoder"), "encoder"),
        ("encoder-decoder", lambda document: document["graphs"].pop("attention"), "'attention'"),
    ],
)
def test_field_that_does_not_fit_the_kind_is_rejected(kind: str, change: Change, part: str) -> None:
    document = document_of(kind)
    change(document)
    with pytest.raises(ManifestError) as caught:
        read(document)
    assert part in str(caught.value)


def labelled(count: int) -> Change:
    labels = [f"{index}" for index in range(count)]
    return put("output", value={"kind": "labels", "size": count, "labels": labels})


def prompts(count: int) -> Change:
    return put("source", "prompts", value={f"{index}": "" for index in range(count)})


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (limits.MAX_LABELS, labelled),
        (limits.MAX_PROMPTS, prompts),
        (limits.MAX_PROMPT_LENGTH, lambda n: put("source", "prompts", value={"a": "b" * n})),
        (limits.MAX_IMAGE_SIDE, lambda n: images(width=n)),
        (limits.MAX_IMAGE_SIDE, lambda n: images(height=n)),
        (limits.MAX_PATCH_SIZE, lambda n: patches(patch=n)),
        (limits.MAX_PATCH_REPEATS, lambda n: patches(layout="channels_first", frames=n)),
        (
            limits.MAX_POSITION_SIDE,
            lambda n: patches(table={"side": n, "interpolation": "corners"}),
        ),
    ],
)
def test_limit_is_accepted_and_one_more_is_not(limit: int, make: Callable[[int], Change]) -> None:
    document = document_of("encoder")
    make(limit)(document)
    assert read(document).kind == "encoder"
    make(limit + 1)(document)
    with pytest.raises(ManifestError):
        read(document)
