"""What verification and export find in bundles of every kind, beyond damaged weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cases.modules import CONFIGS, OF_KINDS
from tests.cases.run import Runs
from tests.export.models_of_kinds import module_of, write_wrapping_tokenizer
from torch import Tensor

import ortolan
from ortolan.export import pipeline
from ortolan.export.errors import ParityError
from ortolan.export.options import ExportOptions, Int4
from ortolan.export.source import open_exportable
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.inputs import audio
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.replay import replay
from ortolan.runtime.verification.report import Report


@pytest.fixture
def exported(runs: Runs) -> Callable[[str], Path]:
    """The bundle of a kind."""
    return lambda name: runs(OF_KINDS[name]).bundle


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
    bundle = exported("seq2seq")
    encode_source: Callable[..., Encoded] = Engine.encode_source

    def unmasked(engine: Engine, inputs: Any) -> Encoded:
        encoded = encode_source(engine, inputs)
        longest = inputs["input_ids"].shape[1]
        return replace(encoded, lengths=np.array([longest], np.int32))

    monkeypatch.setattr(Engine, "encode_source", unmasked)
    report = replayed(bundle)
    assert report.verdict == "FAIL"
    assert report.phases["prefill"].max_abs_delta < 1e-3
    assert report.phases["decode"].max_abs_delta > 1e-2
    assert report.first_divergence is not None
    assert report.first_divergence.phase == "decode"


def test_source_of_another_probe_is_found(
    exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = exported("seq2seq")
    encode_source: Callable[..., Encoded] = Engine.encode_source
    monkeypatch.setattr(
        Engine,
        "encode_source",
        lambda engine, inputs: encode_source(
            engine, {**inputs, "input_ids": inputs["input_ids"][:, ::-1].copy()}
        ),
    )
    assert replayed(bundle).verdict == "FAIL"


class Louder(Weights):
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
    source = open_exportable(module)
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
