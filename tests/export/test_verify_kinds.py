"""Bundles of every kind against their certificates: sound ones pass, damaged ones fail."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export.models_of_kinds import (
    encoder_config,
    image_config,
    module_of,
    one_layer,
    seq2seq_config,
    speech_config,
    write_wrapping_tokenizer,
)
from tests.runtime.damaged_bundles import damage
from torch import Tensor

import ortolan
from ortolan.export import pipeline
from ortolan.export.errors import ParityError
from ortolan.export.options import ExportOptions, Int4
from ortolan.export.source import open_exportable
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    LanguageModelHead,
    NormConfig,
    RelativeBiasPositions,
)
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.slots import Encoded
from ortolan.runtime.inputs import audio
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.replay import replay, verify
from ortolan.runtime.verification.report import Report

NORM = NormConfig(kind="layer", eps=1e-5)

CONFIGS: dict[str, Callable[[], Any]] = {
    "logits": lambda: encoder_config(
        head=LanguageModelHead(tied=True, bias=True, activation="gelu", norm=NORM)
    ),
    "embedding": lambda: encoder_config(head=EmbeddingHead(pooling=("mean",))),
    "image labels": lambda: image_config(
        head=ClassifierHead(labels=("a", "b", "c"), pooling="first")
    ),
    "seq2seq": lambda: seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=11)),
    "speech": speech_config,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Exports a config of `CONFIGS` once."""

    @cache
    def export(name: str) -> Path:
        out = tmp_path_factory.mktemp("kinds") / "bundle"
        ortolan.export(module_of(one_layer(CONFIGS[name]())), out)
        return out

    return export


def changed(bundle: Path, folder: Path, name: str) -> Path:
    """A copy of a bundle with a weight that is 2 % larger, and a matching manifest."""

    def enlarge(values: NDArray[Any]) -> None:
        values *= 1.02

    shutil.copytree(bundle, folder)
    damage(folder, name, enlarge)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("embedding", "seq2seq") else pytest.mark.slow)
        for name in CONFIGS
    ],
)
def test_sound_bundle_of_every_kind_passes(name: str, exported: Callable[[str], Path]) -> None:
    report = verify(exported(name), threads=1)
    assert (report.verdict, report.non_finite) == ("PASS", 0)
    if name in ("seq2seq", "speech"):
        assert (report.kind, set(report.phases)) == (
            "encoder-decoder",
            {"prefill", "decode", "chunked"},
        )
        assert report.perplexity == pytest.approx(report.reference_perplexity, rel=1e-4)
    else:
        assert (report.kind, report.output) == ("encoder", name.split()[-1])
        assert set(report.phases) == {"single", "batch"}
    stored = read_certificate(open_bundle(exported(name))).measured
    assert stored is not None
    assert stored.phases.keys() == report.phases.keys()


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("logits", "blocks.0.attention.qkv.weight"),
        ("logits", "head.transform.weight"),
        ("embedding", "blocks.0.feed_forward.up.weight"),
        ("image labels", "blocks.0.attention.out.weight"),
        ("seq2seq", "decoder.blocks.0.cross_attention.kv.weight"),
        *(
            pytest.param(kind, weight, marks=pytest.mark.slow)
            for kind, weight in (
                ("image labels", "position_embedding.weight"),
                ("seq2seq", "encoder.blocks.0.feed_forward.down.weight"),
                ("seq2seq", "decoder.blocks.0.cross_attention.q.weight"),
                ("seq2seq", "decoder.position_bias.weight"),
                ("speech", "encoder.embedding.conv1.weight"),
                ("speech", "encoder.blocks.0.attention.qkv.weight"),
                ("speech", "decoder.blocks.0.cross_attention.kv.weight"),
            )
        ),
    ],
)
def test_weight_that_was_changed_is_found(
    name: str, weight: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    report = verify(changed(exported(name), tmp_path / "bundle", weight), threads=1)
    assert report.verdict == "FAIL"
    assert report.first_divergence is not None


def replayed(bundle: Path) -> Report:
    opened = open_bundle(bundle)
    return replay(Engine(opened, threads=1), read_certificate(opened))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["mel_filters", "FLOOR"])
def test_spectrograms_that_differ_from_those_of_pytorch_are_found(
    part: str, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert replayed(exported("speech")).verdict == "PASS"
    original = getattr(audio, part)
    changed = 1e-3 if part == "FLOOR" else lambda source: original(source) * 1.05
    monkeypatch.setattr(audio, part, changed)
    assert replayed(exported("speech")).verdict == "FAIL"


def test_padding_of_a_source_that_is_not_masked_is_found_while_decoding(
    exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_source: Callable[..., Encoded] = Engine.encode_source

    def unmasked(engine: Engine, inputs: Any) -> Encoded:
        encoded = encode_source(engine, inputs)
        longest = inputs["input_ids"].shape[1]
        return replace(encoded, lengths=np.array([longest], np.int32))

    monkeypatch.setattr(Engine, "encode_source", unmasked)
    report = replayed(exported("seq2seq"))
    assert report.verdict == "FAIL"
    assert report.phases["prefill"].max_abs_delta < 1e-3
    assert report.phases["decode"].max_abs_delta > 1e-2
    assert report.first_divergence is not None
    assert report.first_divergence.phase == "decode"


def test_source_of_another_probe_is_found(
    exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_source: Callable[..., Encoded] = Engine.encode_source
    monkeypatch.setattr(
        Engine,
        "encode_source",
        lambda engine, inputs: encode_source(
            engine, {**inputs, "input_ids": inputs["input_ids"][:, ::-1].copy()}
        ),
    )
    assert replayed(exported("seq2seq")).verdict == "FAIL"


class Louder:
    """Weights that grow by 5 % after the reference is computed."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.factor = 1.0

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.weights.rows(name, start, stop) * self.factor


@pytest.mark.parametrize("name", ["embedding", pytest.param("seq2seq", marks=pytest.mark.slow)])
def test_export_that_goes_wrong_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(CONFIGS[name]())
    source = open_exportable(module, tokenizer=None, max_context=None)
    louder = Louder(source.weights)

    def told(step: str, done: int, total: int, what: str = "") -> None:
        louder.factor = 1.0 if step == "reference" else 1.05

    given = replace(source, weights=louder)
    monkeypatch.setattr(pipeline, "open_exportable", lambda *_, **__: given)
    output = "embedding" if name == "embedding" else "logits"
    with pytest.raises(ParityError, match=rf"{output} within .* a mean"):
        ortolan.export(module, tmp_path / "out", progress=told)
    assert not (tmp_path / "out").exists()


# --- calibration ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logits", "image labels", "seq2seq"])
def test_every_kind_is_calibrated_and_judged_on_a_file(name: str, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "file", None
    random = np.random.default_rng(0)
    if name == "image labels":
        with path.open("wb") as stream:
            np.save(stream, random.integers(0, 256, (40, 9, 6, 3), np.uint8))
    else:
        tokenizer = write_wrapping_tokenizer(tmp_path)
        lines = ["".join(map(chr, random.integers(65, 91, 12))) for _ in range(80)]
        tab = "\t" if name == "seq2seq" else " "
        path.write_text("".join(f"{line}{tab}{line[::-1]}\n" for line in lines))
    bundle = ortolan.export(
        module_of(CONFIGS[name]()),
        tmp_path / "out",
        precision=Int4(group_size=32),
        calibration=path,
        options=ExportOptions(tokenizer=tokenizer, max_kl=20.0),
    )
    methods = {weight.name: weight.method for weight in bundle.manifest.quantized}
    assert {method for weight, method in methods.items() if "blocks." in weight} == {"gptq"}
    certificate = read_certificate(bundle)
    assert certificate.thresholds.mean_kl is not None
    assert certificate.measured is not None
    assert len(certificate.probes) == {"logits": 4, "image labels": 8, "seq2seq": 16}[name]
