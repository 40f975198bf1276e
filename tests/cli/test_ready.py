"""`ortolan chat MODEL`, `run MODEL` and `serve MODEL` with checkpoints."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Run, error_line, run_here, run_in_subprocess
from tests.hub.server import Hub, Repository
from tests.hub.server import hub as hub
from tests.modeling.checkpoint.packed_files import METHODS, write_packed
from tests.tiny.encoders import BERT

from ortolan import modeling
from ortolan.cache import cache_folder
from ortolan.cli.ready import Job, _main, shown_name
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.runtime import open_bundle
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.verification.verified import is_verified
from ortolan.server import Settings

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

ASK = b"What is it?\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_exports: None) -> Path:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Export in this process, which has imported PyTorch; these are the jobs."""
    jobs: list[Job] = []

    def run_here(_: str, __: str, text: str, *, on_line: Callable[[str], None]) -> None:
        jobs.append(msgspec.json.decode(text, type=Job))
        _main(jobs[-1], lambda *words: on_line(json.dumps(words)))

    monkeypatch.setattr("ortolan.export.process.run_python", run_here)
    return jobs


@pytest.fixture
def chats(checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint with a chat template."""
    folder = shutil.copytree(checkpoint, tmp_path / "chats")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def kept() -> list[str]:
    folder = cache_folder() / "bundles"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def run(ortolan: Run, *arguments: str | Path, stdin: bytes = b"") -> str:
    """Run a command that succeeds, and return what it says on stderr."""
    done = ortolan(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def test_checkpoint_is_exported_once_and_that_is_said(
    ortolan: Run, chats: Path, exports: list[Job]
) -> None:
    said = run(ortolan, "chat", chats, "-n", "4", stdin=ASK)
    assert f"ortolan: exporting {chats} to int8, once: about " in said
    assert f"kept in {cache_folder()}\n" in said
    assert run(ortolan, "chat", chats, "-n", "4", stdin=ASK) == ""
    run(ortolan, "run", chats, "ab", "-n", "4")
    assert len(exports) == 1
    assert kept() == [exports[0].key]
    bundle = open_bundle(cache_folder() / "bundles" / exports[0].key)
    assert is_verified(bundle, onnxruntime=onnxruntime_version())  # no first load is needed


def test_precision_and_files_and_path_of_a_checkpoint_are_part_of_the_key(
    ortolan: Run, chats: Path, exports: list[Job]
) -> None:
    for precision in ("fp32", "int8", "fp32"):
        run(ortolan, "run", chats, "ab", "-n", "1", "--precision", precision)
    assert [job.precision for job in exports] == ["fp32", "int8"]
    listed = json.loads(ortolan("cache", "--json").stdout)["bundles"]
    assert [entry["precision"] for entry in listed] == ["fp32", "int8"]
    (chats / "notes.md").write_text("not part of the model")
    run(ortolan, "run", chats, "ab", "-n", "1", "--precision", "fp32")
    assert len(exports) == 2
    os.utime(chats / "model.safetensors", (1000, 1000))
    run(ortolan, "run", chats, "ab", "-n", "1", "--precision", "fp32")
    moved = chats.rename(chats.with_name("my model"))
    run(ortolan, "run", moved, "ab", "-n", "1", "--precision", "fp32")
    names = [job.key.rpartition("-")[0] for job in exports]
    assert names == ["chats-fp32", "chats-int8", "chats-fp32", "my-model-fp32"]
    assert len({job.key for job in exports}) == 4


def write_encoder(folder: Path) -> Path:
    config = config_from_hf(BERT, modeling.EncoderConfig)
    modeling.save(modeling.EncoderModel(config), folder)
    return folder


def test_what_cannot_be_used_is_refused_and_nothing_is_kept(
    checkpoint: Path, chats: Path, tmp_path: Path, exports: list[Job], snapshot: SnapshotAssertion
) -> None:
    encoder = write_encoder(tmp_path / "bert")
    broken = shutil.copytree(chats, tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "llama"}')
    said = [
        error_line("chat", checkpoint, stdin=ASK).replace(f"{checkpoint}", "checkpoint"),
        error_line("chat", encoder, stdin=ASK),
        error_line("run", encoder, "x"),
        error_line("run", broken, "x"),
        error_line("serve", chats, chats),
    ]
    assert [line.replace(f"{tmp_path}/", "") for line in said] == snapshot
    assert kept() == []


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_bundle_in_the_cache_is_made_again(
    damage: str, ortolan: Run, chats: Path, exports: list[Job]
) -> None:
    run(ortolan, "run", chats, "ab", "-n", "4")
    files = (cache_folder() / "bundles" / exports[0].key).glob("*.bin")
    weights = max(files, key=lambda file: file.stat().st_size)
    if damage == "missing":
        weights.unlink()
    else:
        os.truncate(weights, 100)
    said = run(ortolan, "run", chats, "ab", "-n", "4")
    assert "in the cache is damaged" in said
    assert len(exports) == 2
    assert "damaged" not in run(ortolan, "run", chats, "ab", "-n", "4")
    assert len(exports) == 2


def test_full_disk_is_one_line_and_leaves_nothing(
    ortolan: Run, chats: Path, exports: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ortolan.files.NewFile.write", full)
    done = ortolan("chat", chats, stdin=ASK)
    assert done.returncode == 2
    *_, line = done.stderr.decode().splitlines()
    assert line.startswith(f"ortolan: Cannot keep {exports[0].key} in {cache_folder()}: ")
    assert "No space left on device. Free some disk space. Or set XDG_CACHE_HOME" in line
    assert kept() == []


@pytest.fixture
def published(hub: Hub, chats: Path) -> Repository:
    """The checkpoint as org/model."""
    contents = {path.name: path.read_bytes() for path in chats.iterdir()}
    repository = hub.repositories["org/model"] = Repository(contents)
    return repository


def test_each_commit_of_a_name_is_fetched_and_exported_once(
    hub: Hub,
    published: Repository,
    ortolan: Run,
    exports: list[Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = published.refs["refs/heads/main"]
    assert "exporting org/model to int8" in run(ortolan, "chat", "org/model", "-n", "1", stdin=ASK)
    assert kept() == [exports[0].key]
    assert exports[0].key.startswith("org--model-")
    second = published.commit({"notes.md": b"new"}, "refs/heads/main")
    run(ortolan, "run", "org/model", "ab", "-n", "1")
    run(ortolan, "run", "org/model", "ab", "-n", "1", "--revision", first)
    assert [job.commit for job in exports] == [first, second]
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    run(ortolan, "chat", "org/model", "-n", "1", stdin=ASK)
    assert hub.requests == []
    assert len(exports) == 2


def test_weights_of_a_name_without_template_are_not_fetched(
    hub: Hub, checkpoint: Path, exports: list[Job]
) -> None:
    contents = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    hub.repositories["org/model"] = Repository(contents)
    assert "org/model has no chat template" in error_line("chat", "org/model", stdin=ASK)
    assert hub.seen("model.safetensors") == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/name", "org/name"),
        ("org/name:int4@v1", "org/name:int4"),
        ("/x/my-model", "my-model"),
        ("/x/my-model.Q4_1.gguf", "my-model.Q4_1"),
        (f"/x/models--org--name/snapshots/{'0' * 40}", "org/name"),
        ("/x/models--org--name", "org--name"),
    ],
)
def test_name_that_is_shown(model: str, name: str) -> None:
    assert shown_name(model) == name


def test_without_the_extra_one_line_says_what_to_install(
    chats: Path, exports: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortolan.export.pipeline", None)
    said = error_line("chat", chats, stdin=ASK)
    assert "needs the package" in said
    assert 'pip install "ortolan[export]"' in said


@pytest.mark.slow
def test_the_command_line_exports_in_a_subprocess(chats: Path) -> None:
    first = run_in_subprocess("chat", chats, "-n", "4", stdin=ASK)
    assert first.returncode == 0, first.stderr.decode()
    assert b"ortolan: exporting " in first.stderr
    assert len(kept()) == 1
    second = run_in_subprocess("chat", chats, "-n", "4", stdin=ASK)
    assert b"exporting" not in second.stderr
    assert second.stdout == first.stdout


def test_a_subprocess_that_dies_is_one_line(
    chats: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("import os; os._exit(9)")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = error_line("chat", chats, stdin=ASK)
    assert f"The export of {chats} ended: exit status 9. If it ran out of memory" in said


@pytest.mark.usefixtures("published")
def test_server_names_a_model_as_its_user_does(
    chats: Path, exports: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Settings] = []
    monkeypatch.setattr("ortolan.server.run.run", lambda chosen, **_: settings.append(chosen))
    done = run_here("serve", chats, "org/model", f"own={chats}")
    assert done.returncode == 0, done.stderr.decode()
    bundles = {name: path.name for name, path in settings[0].bundles.items()}
    first, second = (job.key for job in exports)
    assert bundles == {"chats": first, "org/model": second, "own": first}


@pytest.mark.slow
def test_quantized_checkpoint_keeps_its_codes(
    ortolan: Run, tmp_path: Path, exports: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "quantized", METHODS["gptq-4"])
    monkeypatch.setattr("ortolan.server.run.run", lambda *_, **__: None)
    said = run(ortolan, "serve", tmp_path / "quantized")
    assert f"exporting {tmp_path / 'quantized'} with its own codes, once" in said
    assert exports[0].precision == "int8"
    listed = json.loads(ortolan("cache", "--json").stdout)["bundles"]
    assert [entry["precision"] for entry in listed] == ["int4"]
