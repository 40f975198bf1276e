"""The programs in examples/, run as they say, on trained models of the repository."""

import csv
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient
from tests.cases.encoders import EMBEDDING
from tests.cases.pairs import RERANKED
from tests.cases.run import Runs
from tests.runtime.chat.tiny_chat import chat_model

import ortolan
import record_output
from ortolan.export.adapter import export_adapter

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"

pytestmark = pytest.mark.slow

Export = Callable[[str], Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Export a trained model of the repository, once."""

    @cache
    def export(name: str) -> Path:
        out = tmp_path_factory.mktemp(name) / "bundle"
        ortolan.export(REPOSITORY / "models" / name, out)
        return out

    return export


def run(name: str, *arguments: str | Path, stdin: str = "") -> str:
    """Output of an example in a process of its own."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_lists_every_program() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_chats_at_a_terminal_and_in_a_file_remember(tmp_path: Path) -> None:
    model, questions = chat_model(tmp_path), ("Hi.", "Yes.")
    conversation = model.conversation()
    answers = [conversation.ask(text, max_new_tokens=4).content for text in questions]
    most = ("--max-new-tokens", "4")
    output = run("terminal_chat.py", tmp_path / "bundle", *most, stdin="Hi.\nYes.\n\n")
    assert output == "".join(f"> {answer}\n" for answer in answers) + "> "
    words = (tmp_path / "bundle", tmp_path / "talk.json")
    outputs = [run("saved_conversation.py", *words, text, *most) for text in questions]
    assert outputs == [f"{answer}\n" for answer in answers]


def test_web_app_streams_the_completion(trained: Export) -> None:
    build_app = runpy.run_path(str(EXAMPLES / "web_app.py"))["build_app"]
    bundle = trained("pythonic")
    with TestClient(build_app(str(bundle))) as client:
        answer = client.post("/complete", json={"prompt": "def main("})
        refused = client.post("/complete", json={"prompt": "x" * 9000})
    model = ortolan.load(bundle, ortolan.Decoder)
    assert answer.text == model.generate("def main(", max_new_tokens=64).text
    assert refused.status_code == 400


def test_label_csv_adds_columns_that_follow_the_schema(trained: Export, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text\nimport os\n"a, b"\n')
    values = {"verdict": {"enum": ["good", "bad"]}, "stars": {"enum": [1, 2, 3]}}
    schema = {
        "type": "object",
        "properties": values,
        "required": [*values],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    files = (tmp_path / "in.csv", tmp_path / "out.csv")
    column = ("--column", "text", "--schema", tmp_path / "schema.json")
    run("label_csv.py", trained("pythonic"), *files, *column)
    with files[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["import os", "a, b"]
    assert {row["verdict"] for row in rows} <= {"good", "bad"}
    assert {row["stars"] for row in rows} <= {"1", "2", "3"}


def test_semantic_search_orders_lines_by_the_reranker(runs: Runs, tmp_path: Path) -> None:
    embedder, reranker = runs(EMBEDDING).bundle, runs(RERANKED).bundle
    lines = ["def f(", "import os", "return x", "x = 1"]
    (tmp_path / "notes.txt").write_text("\n".join(lines))
    words = (embedder, reranker, tmp_path / "notes.txt", "def main(", "--top", "2")
    output = run("semantic_search.py", *words)
    pairs = [("def main(", line) for line in lines]
    results = runs(RERANKED).model.classify(pairs)
    ranked = sorted(zip((r.score for r in results), lines, strict=True), reverse=True)
    assert output == "".join(f"{score:.3f}\t{line}\n" for score, line in ranked[:2])


def test_translate_file_keeps_lines(trained: Export, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Paul has 21 apples.\n\nI live in Paris.\n")
    for beams in ("1", "4"):
        run(
            "translate_file.py",
            trained("numerals"),
            tmp_path / "in.txt",
            tmp_path / "out.txt",
            *("--beams", beams),
        )
        translated = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
        assert translated[:2] == ["Paul a vingt et une pommes.", ""]
        assert len(translated) == 3


def test_classify_images_names_digits(trained: Export, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for place in range(10):
        pixels = (digits.images[place] * (255 / 16)).round().astype("uint8")
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
    files = [tmp_path / f"{place}.png" for place in range(10)]
    lines = run("classify_images.py", trained("digits"), *files).splitlines()
    labels = [line.split("\t")[1].split()[0] for line in lines]
    assert labels == [str(digits.target[place]) for place in range(10)]


def test_adapters_continue_differently(trained: Export, tmp_path: Path) -> None:
    bundle, lines = trained("pythonic"), tmp_path / "lines"
    workspace = record_output.workspace(tmp_path / "workspace")
    source = workspace / "adapters" / "lines"
    export_adapter(source, lines, bundle=bundle, checkpoint=REPOSITORY / "models/pythonic")
    output = run("adapters.py", bundle, "def main(", f"lines={lines}", "--max-new-tokens", "8")
    model = ortolan.load(bundle, ortolan.Decoder, adapters={"lines": lines})
    texts = {
        name: model.generate("def main(", max_new_tokens=8, adapter=name).text
        for name in (None, "lines")
    }
    assert output == f"--- no adapter\n{texts[None]}\n--- lines\n{texts['lines']}\n"


def test_own_module_trains_exports_and_generates(tmp_path: Path) -> None:
    output = run("own_module.py", "--steps", "20", "--out", tmp_path)
    for precision in ("fp32", "int4"):
        model = ortolan.load(tmp_path / precision, ortolan.Decoder)
        text = model.generate("The with statement", max_new_tokens=60).text
        assert f"{precision}: The with statement{text}" in output


def test_ray_bulk_completes_every_line(trained: Export, tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="needs ortolan[ray]")
    prompts = ("def main(", "import os")
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    words = (trained("pythonic"), tmp_path / "prompts.txt", tmp_path / "out")
    run("ray_bulk.py", *words, "--workers", "1", "--max-new-tokens", "8")
    files = sorted((tmp_path / "out").glob("*.json"))
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    model = ortolan.load(trained("pythonic"), ortolan.Decoder)
    expected = {text: model.generate(text, max_new_tokens=8).text for text in prompts}
    assert {row["prompt"]: row["completion"] for row in rows} == expected
