"""Folders in onnxruntime-genai, and folders of its model builder in Ortolan.

They need a Python with onnxruntime-genai 0.18, named by ORTOLAN_GENAI_PYTHON. It has an environment
of its own, since onnxruntime-genai pins another onnxruntime.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.export import tiny_models
from tests.export.layouts.built_folder import module

import ortolan
from ortolan.export.layouts.from_genai import import_genai
from ortolan.export.layouts.genai import convert
from ortolan.runtime import Bundle, Decoder, load

REPOSITORY = Path(__file__).parents[2]
PYTHONIC = REPOSITORY / "models" / "pythonic"
GUIDE = REPOSITORY / "docs" / "migrating" / "onnxruntime-genai.md"
PYTHON = os.environ.get("ORTOLAN_GENAI_PYTHON")
PROMPTS = ("def read_lines(path):", "class Stack", "import os\n\n\ndef remove(")
COUNT = 32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="ORTOLAN_GENAI_PYTHON names no Python with onnxruntime-genai"
    ),
]


def run_genai(*arguments: str, folder: Path) -> str:
    """Run a program with onnxruntime-genai and the settings of certificates."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(PYTHON), *arguments],
        cwd=folder,
        env=environment | {"ORT_GQA_DISABLE_FLASH_ATTENTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def generate(folder: Path, *prompts: str) -> Any:
    script = Path(__file__).with_name("genai_generate.py")
    return json.loads(run_genai(str(script), str(folder), str(COUNT), *prompts, folder=folder))


def greedy(model: Decoder, prompt: str) -> list[int]:
    return list(model.generate(prompt, max_new_tokens=COUNT).tokens)


def assert_same(got: list[int], expected: list[int]) -> None:
    """Compare up to the end of the text, after which a batch is padded."""
    assert got[: len(expected)] == expected


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    precision: Any = request.param
    if precision == "int4":
        precision = ortolan.Int4(method="rtn", head_bits=8)
    return ortolan.export(
        PYTHONIC,
        tmp_path_factory.mktemp("bundles") / request.param,
        precision=precision,
        options=ortolan.ExportOptions(allow_poor=True),
    )


def test_genai_generates_the_tokens_of_the_bundle(bundle: Bundle, tmp_path: Path) -> None:
    folder, model = convert(bundle, tmp_path / "genai"), load(bundle.path)
    assert model.tokenizer is not None
    for prompt in PROMPTS:
        got = generate(folder, prompt)
        assert got["ids"] == [model.tokenizer.encode(prompt)]
        assert_same(got["tokens"][0], greedy(model, prompt))


def test_genai_generates_them_in_a_padded_batch(bundle: Bundle, tmp_path: Path) -> None:
    folder, model = convert(bundle, tmp_path / "genai"), load(bundle.path)
    got = generate(folder, *PROMPTS)
    assert len({len(row) for row in got["ids"]}) > 1
    for row, prompt in enumerate(PROMPTS):
        assert_same(got["tokens"][row], greedy(model, prompt))


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    bundle = ortolan.export(PYTHONIC, tmp_path / "bundle")
    convert(bundle, tmp_path / "build" / "pythonic-genai")
    (program,) = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    printed = run_genai("-c", program, folder=tmp_path)
    assert (
        load(bundle.path).generate("def read_lines(path):", max_new_tokens=8).text[:20] in printed
    )


def build(checkpoint: Path, out: Path, precision: str) -> Path:
    """Run the model builder, whose requirements this environment has."""
    code = "import onnxruntime_genai, os; print(os.path.dirname(onnxruntime_genai.__file__))"
    package = run_genai("-c", code, folder=out.parent).strip()
    builder = [f"{package}/models/builder.py", "-i", checkpoint, "-o", out, "-p", precision]
    done = subprocess.run(
        [sys.executable, *map(str, builder), "-e", "cpu", "-c", str(out.parent / "cache")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.parametrize(
    ("precision", "largest"), [("fp32", 1e-9), ("int4", 0.5)], ids=["fp32", "int4"]
)
def test_an_import_generates_what_genai_does(
    tmp_path: Path, precision: str, largest: float
) -> None:
    built = build(PYTHONIC, tmp_path / "built", precision)
    bundle = import_genai(built, tmp_path / "bundle", checkpoint=PYTHONIC, allow_poor=True)
    quality = bundle.manifest.quality
    assert quality is not None
    assert quality.mean_kl is not None
    assert quality.mean_kl < largest
    model = load(bundle.path)
    for prompt in PROMPTS:
        assert_same(generate(built, prompt)["tokens"][0], greedy(model, prompt))


def test_the_builder_writes_the_forms_that_the_quick_tests_write(tmp_path: Path) -> None:
    checkpoint = tiny_models.write_checkpoint(tmp_path / "checkpoint", module())
    shutil.copy(PYTHONIC / "tokenizer.json", checkpoint)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))
    built = build(checkpoint, tmp_path / "built", "fp32")
    for name in ("tokenizer.json", "tokenizer_config.json"):  # has more ids than the model
        (built / name).unlink()
        (checkpoint / name).unlink()
    bundle = import_genai(built, tmp_path / "bundle", checkpoint=checkpoint)
    assert bundle.manifest.quality is not None
    assert bundle.manifest.quality.word == "excellent"
