"""Each extra works when it is installed alone, in a new environment.

Installs the working tree with pip and constraints.txt, so it needs a package index or its cache.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.modeling.checkpoint.gguf_cases import written
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe
from tests.runtime.chat.tiny_chat import chat_model
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM

from digits.data import read
from ortolan.modeling.training.data import LabelledImages

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
    "export": ("transformers", "matplotlib", "PIL", "sklearn", "num2words"),
    "docs": ("transformers", "sklearn", "num2words"),
    "train": ("transformers", "onnx", "onnxruntime", "sklearn", "num2words", "sacrebleu"),
}
"""Packages that an extra must not install."""

Ortolan = Callable[..., str]


@cache
def installed(extra: str, folder: Path) -> Path:
    """Install one extra in a new environment; return the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / extra)], check=True)
    programs = folder / extra / "bin"
    pip = [str(programs / "pip"), "install", "--quiet", "-c", "constraints.txt", f".[{extra}]"]
    subprocess.run(pip, cwd=REPOSITORY, check=True)
    return programs


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("install")


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


@pytest.mark.parametrize("extra", ABSENT)
def test_an_extra_installs_only_what_it_needs(extra: str, environments: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {ABSENT[extra]} if u.find_spec(n)])"
    assert run(installed(extra, environments) / "python", "-c", code).strip() == "[]"


def test_cpu_continues_a_prompt_and_verifies(environments: Path, bundle: Path) -> None:
    program = installed("cpu", environments) / "ortolan"
    assert run(program, "run", bundle, "def", "-n", "4")
    assert "PASS" in run(program, "verify", bundle)


def test_docs_builds_the_site(environments: Path, tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "build_docs.py"
    run(installed("docs", environments) / "python", script, tmp_path / "site")
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize("extra", ["export", "train"])
def test_cpu_names_the_extra_of_other_commands(
    extra: str, environments: Path, tmp_path: Path
) -> None:
    program = installed("cpu", environments) / "ortolan"
    message = run(program, extra, "a", tmp_path / "b", code=2)
    assert f'pip install "ortolan[{extra}]"' in message


@pytest.mark.parametrize(
    ("model", "precision"), [("pythonic", "fp32"), ("digits", "int4"), ("numerals", "int8")]
)
def test_export_writes_a_bundle_that_verifies(
    model: str, precision: str, environments: Path, tmp_path: Path
) -> None:
    program = installed("export", environments) / "ortolan"
    run(program, "export", MODELS / model, tmp_path / "bundle", "--precision", precision)
    assert "PASS" in run(program, "verify", tmp_path / "bundle")


def test_transformers_and_gguf_export_their_checkpoints(environments: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("lfm2_moe"))  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path / "lfm2_moe")
    _, file = written("llama", tmp_path)
    for extra, source in (("transformers", tmp_path / "lfm2_moe"), ("gguf", file)):
        program, out = installed(extra, environments) / "ortolan", tmp_path / extra
        run(program, "export", source, out)
        assert "PASS" in run(program, "verify", out)


def test_train_follows_a_recipe_with_its_own_data(environments: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, LANGUAGE_MODEL)
    run(installed("train", environments) / "ortolan", "train", recipe, tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "loss.png"} <= written
    figures = json.loads((tmp_path / "out" / "training.json").read_text())
    assert figures["lines"] == 20  # of the data module


def test_train_names_the_package_that_a_recipe_needs(environments: Path, tmp_path: Path) -> None:
    program = installed("train", environments) / "ortolan"
    recipe = MODELS / "digits" / "recipe.toml"
    message = run(program, "train", recipe, tmp_path / "out", code=2)
    assert "sklearn" in message
    assert not (tmp_path / "out").exists()


def test_chat_answers(environments: Path, tmp_path: Path) -> None:
    path = chat_model(tmp_path).bundle.path
    code = (
        "import sys, ortolan; model = ortolan.load(sys.argv[1])\n"
        "print(model.chat([{'role': 'user', 'content': 'a'}], max_new_tokens=3).content)"
    )
    assert run(installed("chat", environments) / "python", "-c", code, path)


def test_plot_draws_attention(environments: Path, tmp_path: Path, ortolan: Ortolan) -> None:
    ortolan("export", MODELS / "numerals", tmp_path / "bundle", "--attention-maps")
    program, picture = installed("plot", environments) / "ortolan", tmp_path / "attention.png"
    run(program, "attention", tmp_path / "bundle", "I live in Paris.", "-o", picture)
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 100


def test_audio_reads_sound_files(environments: Path, tmp_path: Path, ortolan: Ortolan) -> None:
    ortolan("export", MODELS / "spoken", tmp_path / "bundle")
    program, talk = installed("audio", environments) / "ortolan", MODELS / "spoken" / "talk.flac"
    printed = run(program, "transcribe", tmp_path / "bundle", talk)
    assert "nine green cows jump on the hill" in printed
    message = run(
        installed("cpu", environments) / "ortolan", "transcribe", tmp_path / "bundle", talk, code=2
    )
    assert 'pip install "ortolan[audio]"' in message


def test_grammar_constrains_a_text(environments: Path, tmp_path: Path, ortolan: Ortolan) -> None:
    ortolan("export", MODELS / "pythonic", tmp_path / "bundle")
    program = installed("grammar", environments) / "ortolan"
    printed = run(program, "run", tmp_path / "bundle", "x = ", "--regex", "[0-9]{4}")
    assert printed.splitlines()[0].isdigit()
    program = installed("cpu", environments) / "ortolan"
    message = run(program, "run", tmp_path / "bundle", "x = ", "--regex", "[0-9]{4}", code=2)
    assert 'pip install "ortolan[grammar]"' in message


def test_vision_reads_image_files(environments: Path, tmp_path: Path, ortolan: Ortolan) -> None:
    ortolan("export", MODELS / "digits", tmp_path / "bundle")
    images: LabelledImages = read()
    rows = np.flatnonzero(images.held_out.labels == 7)[:3]
    files = [tmp_path / f"{row}.png" for row in rows]
    for row, file in zip(rows, files, strict=True):
        Image.fromarray(images.held_out.pixels[row, ..., 0]).save(file)
    program = installed("vision", environments) / "ortolan"
    results = json.loads(run(program, "classify", tmp_path / "bundle", *files, "--json"))
    assert str(results).count("'label': '7'") == 3
