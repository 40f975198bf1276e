"""Commands that take a checkpoint or an adapter by its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import checkpoint as checkpoint
from tests.cli.conftest import error_line, run_here
from tests.export.test_adapter import Base, converted, write_adapter
from tests.export.test_stored_codes import PRODUCTS, write_model
from tests.hub.server import Hub, Repository

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.modeling import ConfigError
from ortolan.runtime import load


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def repository_of(folder: Path, **changes: bytes) -> Repository:
    return Repository(contents(folder) | {"README.md": b"# A model", "run.py": b""} | changes)


def test_an_export_by_name_is_that_of_the_folder_and_knows_its_commit(
    hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    hub.repositories["org/model"] = repository_of(checkpoint)
    commit = hub.repositories["org/model"].refs["refs/heads/main"]
    steps = set[str]()
    by_name = ortolan.export(
        "org/model", tmp_path / "name", progress=lambda step, *_, **__: steps.add(step)
    )
    by_path = ortolan.export(checkpoint, tmp_path / "path")
    assert by_name.manifest.provenance.repository == f"org/model@{commit}"
    assert "repository" not in (tmp_path / "path" / "manifest.json").read_text()
    ours, theirs = contents(tmp_path / "name"), contents(tmp_path / "path")
    assert ours.pop("manifest.json") != theirs.pop("manifest.json")
    assert ours == theirs
    assert by_name.manifest.provenance.source_sha256 == by_path.manifest.provenance.source_sha256
    assert "fetch" in steps
    assert load(tmp_path / "name").generate("ab", max_new_tokens=4).timings.new_tokens


def test_a_revision_is_exported(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    repository = hub.repositories["org/model"] = Repository({"config.json": b"{}"})
    commit = repository.commit(contents(checkpoint), "refs/heads/dev")
    done = run_here("export", "org/model", tmp_path / "out", "--revision", "dev", "--json")
    assert done.returncode == 0, done.stderr.decode()
    provenance = json.loads((tmp_path / "out" / "manifest.json").read_text())["provenance"]
    assert provenance["repository"] == f"org/model@{commit}"
    assert "org/model has no revision v9" in error_line("export", "org/model@v9", tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_an_export_by_name_in_a_process_of_its_own(
    hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    hub.repositories["org/model"] = repository_of(checkpoint)
    arguments = [sys.executable, "-m", "ortolan", "export", "org/model", f"{tmp_path}/out"]
    environment = os.environ | hub.environment | {"PYTHONPATH": "src"}
    done = subprocess.run(arguments, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert load(tmp_path / "out").generate("ab", max_new_tokens=4).timings.new_tokens


@pytest.mark.slow
def test_an_adapter_is_converted_by_name_with_the_checkpoint_that_it_names(
    hub: Hub, tmp_path: Path
) -> None:
    base = Base(tmp_path, "llama")
    adapter = write_adapter(
        tmp_path / "peft", base.model, base.targets, base_model_name_or_path="org/model"
    )
    hub.repositories["org/model"] = repository_of(base.checkpoint)
    hub.repositories["org/lora"] = repository_of(adapter)
    done = run_here("adapter", "org/lora", tmp_path / "out", "--bundle", base.bundle(), "--json")
    assert done.returncode == 0, done.stderr.decode()
    expected = converted(base, adapter, tmp_path / "expected")
    assert contents(tmp_path / "out") == contents(expected)
    ortolan.export("org/model", tmp_path / "one", options=ExportOptions(adapter="org/lora"))
    ortolan.export("org/model", tmp_path / "two", options=ExportOptions(adapter=adapter))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.slow
def test_a_gguf_file_is_exported_by_its_type(hub: Hub, tmp_path: Path) -> None:
    kinds = {f"blk.{i}.{part}.weight": "Q4_0" for i in (0, 1) for part in PRODUCTS}
    for name, own in {"Q4_0": kinds, "f32": {}}.items():
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, own)
    data = {name: (tmp_path / name / "model.gguf").read_bytes() for name in ("Q4_0", "f32")}
    files = {f"tiny-{name}.gguf": content for name, content in data.items()}
    hub.repositories["org/tiny-gguf"] = Repository(files | {"README.md": b"#"})
    bundle = ortolan.export("org/tiny-gguf:q4_0", tmp_path / "out")
    expected = ortolan.export(tmp_path / "Q4_0" / "model.gguf", tmp_path / "expected")
    assert (tmp_path / "out" / bundle.manifest.weights[0]).read_bytes() == (
        tmp_path / "expected" / expected.manifest.weights[0]
    ).read_bytes()
    assert bundle.manifest.provenance.repository is not None
    assert "2 GGUF files fit" in error_line("export", "org/tiny-gguf", tmp_path / "none")


@pytest.mark.parametrize("model_type", ["llama", "own_llama"])
def test_code_of_a_repository_is_neither_fetched_nor_run(
    model_type: str, hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    own = {"model_type": model_type, "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    hub.repositories["org/own"] = repository_of(
        checkpoint,
        **{"config.json": json.dumps(config | own).encode(), "own.py": b"raise SystemExit('ran')"},
    )
    if model_type == config["model_type"]:  # a family needs no code
        assert ortolan.export("org/own", tmp_path / "out").manifest.kind == "decoder"
    else:
        with pytest.raises(ConfigError, match=r"own_llama.*needs the code in its own repository"):
            ortolan.export("org/own", tmp_path / "out")
        assert not hub.seen("/cdn/")  # nor weights
    assert not hub.seen("own.py")


@pytest.mark.parametrize("form", ["export NAME OUT", "export MODEL OUT --adapter NAME"])
def test_a_name_that_is_neither_a_path_nor_a_repository_says_both(
    form: str, hub: Hub, tmp_path: Path
) -> None:
    hub.repositories["org/model"] = Repository({"config.json": b"{}"})
    values: dict[str, str | Path] = {"NAME": "org/modelx", "OUT": tmp_path / "out"}
    values["MODEL"] = tmp_path / "model"
    line = error_line(*(values.get(word, word) for word in form.split()))
    assert "org/modelx: no such file or folder, and no repository org/modelx on" in line
    assert "did you mean org/model?" in line
