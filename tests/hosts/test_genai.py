"""Folders in onnxruntime-genai.

They need a Python with onnxruntime-genai 0.18, named by ORTOLAN_GENAI_PYTHON. It has an environment
of its own, since onnxruntime-genai pins another onnxruntime.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ortolan
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


def test_genai_generates_the_tokens_of_the_bundle_alone_and_in_a_padded_batch(
    bundle: Bundle, tmp_path: Path
) -> None:
    folder, model = convert(bundle, tmp_path / "genai"), load(bundle.path)
    assert model.tokenizer is not None
    batch = generate(folder, *PROMPTS)
    assert len({len(row) for row in batch["ids"]}) > 1
    for row, prompt in enumerate(PROMPTS):
        alone = generate(folder, prompt)
        assert alone["ids"] == [model.tokenizer.encode(prompt)]
        for tokens in (alone["tokens"][0], batch["tokens"][row]):
            assert_same(tokens, greedy(model, prompt))


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    bundle = ortolan.export(PYTHONIC, tmp_path / "bundle")
    convert(bundle, tmp_path / "build" / "pythonic-genai")
    (program,) = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    printed = run_genai("-c", program, folder=tmp_path)
    assert (
        load(bundle.path).generate("def read_lines(path):", max_new_tokens=8).text[:20] in printed
    )
