"""Folders of the Hugging Face cache as sources."""

from pathlib import Path

import pytest
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.decoders import GPT2

from ortolan.modeling import load, read_config
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint

OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The layout of huggingface_hub: links to blobs, and a reference."""
    path = tmp_path / "models--an-org--a-name"
    for revision, values in ((OLD, LLAMA), (NEW, GPT2)):
        blobs, snapshot = path / "blobs" / revision, path / "snapshots" / revision
        reference_model(values).save_pretrained(blobs)
        snapshot.mkdir(parents=True)
        for blob in blobs.iterdir():
            (snapshot / blob.name).symlink_to(blob)
    (path / "refs").mkdir()
    (path / "refs/main").write_text(NEW)
    return path


def test_the_snapshot_that_main_names_is_read(cache: Path) -> None:
    assert load(cache).config.model_type == "gpt2"
    (cache / "refs/main").write_text(f"{OLD}\n")
    assert load(cache).config.model_type == "llama"


def test_a_snapshot_is_a_folder_like_any_other(cache: Path) -> None:
    snapshot = cache / "snapshots" / OLD
    assert read_config(snapshot).model_type == "llama"
    (cache / "refs/main").write_text(OLD)
    assert open_checkpoint(cache).sha256() == open_checkpoint(snapshot).sha256()


def test_a_single_snapshot_needs_no_reference(cache: Path) -> None:
    (cache / "refs/main").unlink()
    message = refused(cache)
    assert OLD in message
    assert NEW in message
    for link in (cache / "snapshots" / NEW).iterdir():
        link.unlink()
    (cache / "snapshots" / NEW).rmdir()
    assert load(cache).config.model_type == "llama"


def test_an_absent_snapshot_is_named(cache: Path) -> None:
    (cache / "refs/main").write_text("3" * 40)
    assert f"snapshots/{'3' * 40}" in refused(cache)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_whose_blob_is_absent_is_named(cache: Path, name: str) -> None:
    (cache / "blobs" / NEW / name).unlink()
    assert name in refused(cache)


def test_an_empty_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    assert "refs/main" in refused(tmp_path)
