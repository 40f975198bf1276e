"""Each extra works when it is installed alone, in a new environment.

Installs the working tree with pip and constraints.txt, so it needs a package index or its cache.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image
from tests.modeling.checkpoint.gguf_cases import written
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe
from tests.runtime.chat.tiny_chat import chat_model
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM

import ortolan

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / "models"

ABSENT = {
    "cpu": ("jinja2", "torch", "onnx", "safetensors", "matplotlib", "PIL", "sklearn", "num2words"),
    "chat": ("torch", "onnx", "safetensors", "transformers", "matplotlib", "PIL", "sklearn"),
    "webgpu": ("torch", "onnx", "safetensors", "matplotlib", "PIL"),
    "audio": ("torch", "onnx", "safetensors", "matplotlib", "sklearn", "num2words"),
    "vision": ("torch", "onnx", "safetensors", "matplotlib", "sklearn", "num2words"),
    "grammar": ("torch", "onnx", "safetensors", "matplotlib", "PIL", "sklearn", "num2words"),
    "plot": ("torch", "onnx", "safetensors", "sklearn", "num2words"),
    "export": ("matplotlib", "PIL", "sklearn", "num2words"),
    "docs": ("sklearn", "num2words"),
    "train": ("transformers", "onnx", "onnxruntime", "sklearn", "num2words", "sacrebleu"),
}
"""Packages that an extra must not install."""

Files = Callable[[str], Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The folder of the programs of an extra, which is installed once."""

    @cache
    def installed(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [f"{folder}/bin/pip", "install", "--quiet", "-c", "constraints.txt", f".[{extra}]"]
        subprocess.run(pip, cwd=REPOSITORY, check=True)
        return folder / "bin"

    return installed


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Bundles and checkpoints by name, and a place `out` for a result."""
    folder = tmp_path_factory.mktemp("places")

    @cache
    def place(name: str) -> Path:
        path = folder / name
        match name:
            case "lfm2_moe":
                model = AutoModelForCausalLM.from_config(tiny_config(name))  # type: ignore[no-untyped-call]
                model.save_pretrained(path)
            case "gguf":
                path = written("llama", folder)[1]
            case "chat":
                path = chat_model(path).bundle.path
            case "recipe":
                path.mkdir()
                path = write_recipe(path, LANGUAGE_MODEL)
            case "image.png":
                Image.new("L", (8, 8), 255).save(path)
            case "pythonic" | "digits" | "numerals" | "spoken":
                options = ortolan.ExportOptions(attention_maps=name == "numerals")
                ortolan.export(MODELS / name, path, options=options)
        return path

    return place


def run(program: Path, *arguments: str | Path, code: int = 0) -> str:
    """Run a program of such an environment, without the working tree on its path."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        cwd=program.parent,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def words_of(line: str, places: Files) -> list[str]:
    """The words of a command; `<name>` is a place, and `<models>` the folder of the models."""
    for name in re.findall(r"<(.+?)>", line):
        line = line.replace(f"<{name}>", f"{MODELS if name == 'models' else places(name)}")
    return line.split()


@pytest.mark.parametrize("extra", ABSENT)
def test_an_extra_installs_only_what_it_needs(extra: str, programs: Files) -> None:
    code = f"import importlib.util as u; print([n for n in {ABSENT[extra]} if u.find_spec(n)])"
    assert run(programs(extra) / "python", "-c", code).strip() == "[]"


@pytest.mark.parametrize(
    ("extra", "line", "printed"),
    [
        ("cpu", "run <pythonic> def -n 4", "4 tokens"),
        ("cpu", "verify <pythonic>", "PASS"),
        ("grammar", "run <pythonic> x --regex [0-9]{4}z", "z\n"),
        ("audio", "transcribe <spoken> <models>/spoken/talk.flac", "nine green cows jump on the"),
        ("vision", "classify <digits> <image.png>", "%"),
        ("plot", "attention <numerals> Hello. -o <picture.png>", "maps"),
        ("export", "export <models>/pythonic <fp32>", "PASS"),
        ("export", "export <models>/digits <int4> --precision int4", "PASS"),
        ("export", "export <models>/numerals <int8> --precision int8", "PASS"),
        ("export", "export <lfm2_moe> <from-transformers>", "PASS"),
        ("gguf", "export <gguf> <from-gguf>", "PASS"),
    ],
)
def test_an_extra_runs_its_commands(
    extra: str, line: str, printed: str, programs: Files, places: Files
) -> None:
    assert printed in run(programs(extra) / "ortolan", *words_of(line, places))


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("export", "export a b"),
        ("train", "train a b"),
        ("audio", "transcribe <spoken> <models>/spoken/talk.flac"),
        ("grammar", "run <pythonic> x --regex a"),
    ],
)
def test_a_missing_extra_is_named(extra: str, line: str, programs: Files, places: Files) -> None:
    said = run(programs("cpu") / "ortolan", *words_of(line, places), code=2)
    assert f'pip install "ortolan[{extra}]"' in said


def test_docs_builds_the_site(programs: Files, tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "build_docs.py"
    run(programs("docs") / "python", script, tmp_path / "site")
    assert (tmp_path / "site" / "index.html").is_file()


def test_train_writes_a_checkpoint_and_names_the_package_that_a_recipe_needs(
    programs: Files, places: Files, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(programs("train") / "ortolan", "train", places("recipe"), out)
    written = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "loss.png"} <= written
    assert json.loads((out / "training.json").read_text())["lines"] == 20  # of the data module
    recipe = MODELS / "digits" / "recipe.toml"
    said = run(programs("train") / "ortolan", "train", recipe, tmp_path / "other", code=2)
    assert "sklearn" in said
    assert not (tmp_path / "other").exists()


def test_chat_answers(programs: Files, places: Files) -> None:
    code = (
        "import sys, ortolan; model = ortolan.load(sys.argv[1])\n"
        "print(model.chat([{'role': 'user', 'content': 'a'}], max_new_tokens=3).content)"
    )
    assert run(programs("chat") / "python", "-c", code, places("chat"))
