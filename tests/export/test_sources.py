"""Bundles from checkpoints in all forms, and errors of those that cannot be read."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import Code, as_pickles
from tests.modeling.checkpoint.gguf_cases import CASES
from tests.modeling.checkpoint.gguf_cases import written as write_gguf_case
from tests.modeling.checkpoint.gguf_files import metadata_of, write_gguf
from tests.modeling.checkpoint.packed_files import WIDE
from tests.modeling.checkpoint.test_adapter import Q, factors, write_adapter
from tests.modeling.checkpoint.test_gguf_tokenizer import bytes_metadata, trained
from tests.modeling.checkpoint.test_towers import written as write_towers
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.encoders import LLAVA

from ortolan.cli import main
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions, Via
from ortolan.export.pipeline import export
from ortolan.export.preview.preview import preview
from ortolan.modeling import load
from ortolan.runtime import load as load_bundle

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ortolan export`; returns its status and output."""

    def call(*arguments: object) -> tuple[object, str, str]:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["ortolan", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def base(tmp_path: Path) -> Path:
    reference_model(WIDE).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_an_adapter_is_in_the_bundle(base: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", {Q: factors((64, 64))})
    options = ExportOptions(adapter=tmp_path / "adapter")
    plain = export(base, tmp_path / "plain")
    adapted = export(base, tmp_path / "adapted", options=options)
    sources = {bundle.manifest.provenance.source_sha256 for bundle in (plain, adapted)}
    assert len(sources) == 2
    ids = list(range(9))
    logits = [load_bundle(bundle.path).logits(ids) for bundle in (plain, adapted)]
    assert abs(logits[0] - logits[1]).max() > 0.01
    with pytest.raises(OptionError, match="live module"):
        export(load(base), tmp_path / "out", options=options)


@pytest.mark.parametrize("via", ["family", pytest.param("transformers", marks=pytest.mark.slow)])
def test_a_gguf_file_has_its_tokenizer_by_either_way(via: Via, tmp_path: Path) -> None:
    tokenizer = bytes_metadata(trained("gpt-2"), "gpt-2")
    size = len(tokenizer["tokenizer.ggml.tokens"])
    model = reference_model(WIDE | {"vocab_size": size})
    file = tmp_path / "model.gguf"
    arch, _, _, change = CASES["llama"]
    metadata = metadata_of(model) | tokenizer | {"attention.key_length": 16}
    write_gguf(file, arch, model, metadata, change=change)
    bundle = export(file, tmp_path / "bundle", options=ExportOptions(via=via))
    assert bundle.manifest.tokenizer == "tokenizer.json"


@pytest.mark.slow
def test_what_is_left_out_is_said(tmp_path: Path, run: Run) -> None:
    write_towers(tmp_path / "source", LLAVA | {"vision_feature_layer": 0})
    status, out, _ = run(tmp_path / "source", tmp_path / "out")
    assert status == 0
    assert "left out" in out
    assert "multi_modal_projector, vision_tower" in out
    assert preview(tmp_path / "source").left_out == ("multi_modal_projector", "vision_tower")


Source = tuple[Path, *tuple[object, ...]]
"""A checkpoint, and options of the command."""


def pickle_with_code(folder: Path) -> Source:
    reference_model(LLAMA).save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"a": Code()}, folder / "pytorch_model.bin")
    return (folder,)


def gguf_cut_short(folder: Path) -> Source:
    folder.mkdir()
    file = write_gguf_case("llama", folder)[1]
    file.write_bytes(file.read_bytes()[:-100])
    return (file,)


def absent_shard(folder: Path) -> Source:
    reference_model(LLAMA).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    as_pickles(folder, tensors)
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    return (folder,)


def adapter_of_another_model(folder: Path) -> Source:
    reference_model(WIDE).save_pretrained(folder)
    write_adapter(folder / "adapter", {Q: factors((32, 32))})
    return folder, "--adapter", folder / "adapter"


@pytest.mark.parametrize(
    "make", [pickle_with_code, gguf_cut_short, absent_shard, adapter_of_another_model]
)
def test_a_source_that_cannot_be_read_is_one_line_and_leaves_nothing(
    make: Callable[[Path], Source], tmp_path: Path, run: Run, snapshot: SnapshotAssertion
) -> None:
    source, *options = make(tmp_path / "source")
    status, _, said = run(source, tmp_path / "out", *options)
    assert status == 2
    line, rest = said.replace(str(tmp_path), "...").split("\n")
    line = re.sub(r"\d+ bytes, but the file has \d+", "... bytes, but the file has ...", line)
    assert line == snapshot
    assert rest == ""
    assert not (tmp_path / "out").exists()
