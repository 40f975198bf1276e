"""models/snippets: its files, their split, their lines, the baseline, and the trained model."""

import json
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.modeling.classifiers import assert_like_transformers

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import read_recipe
from snippets import snippets as corpus
from snippets.data import read_labelled, read_texts
from snippets.snippets import (
    LINES,
    MOST_HELD_OUT,
    PACKAGES,
    Snippet,
    cut,
    names_package,
    package_of,
    read_snippets,
)

MODEL = Path(__file__).parents[2] / "models" / "snippets"

EXCLUDE = ("vendored/*",)


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library with 4 files per package, whose lines and imports identify it."""
    root = tmp_path / "stdlib"
    for package in PACKAGES:
        for number in range(4):
            lines = [f"import {package}", f"from {package}.part import thing", "from . import near"]
            for line in range(30):
                lines += [f"def {package[::-1]}(x{line}):", f"    return {number + line}", ""]
            path = root / package / f"file{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines))
    others = {
        "top.py": "value = 1\n\n\nother = 2\n" * 40,
        "vendored/far.py": "import asyncio\n" * 40,
        "test/test_json/test_one.py": "assert loads('1') == 1\n" * 24,
        "test/test_urllib2.py": "assert quote('1') == '1'\n" * 24,
        "test/test_other.py": "assert True\n" * 24,
    }
    for name, text in others.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "json" / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root) if name == "stdlib" else "")
    return root


def options_of(recipe: str) -> dict[str, Any]:
    data = dict(read_recipe(MODEL / recipe).data)
    del data["source"]
    return data


@pytest.mark.slow
def test_no_file_of_this_standard_library_is_on_both_sides() -> None:
    result = read_snippets(**options_of("recipe.toml"))
    assert not {s.file for s in result.train} & {s.file for s in result.held_out}
    counts = Counter(s.label for s in result.held_out)
    assert set(counts) == {snippet.label for snippet in result.train} == set(range(20))
    assert max(counts.values()) <= MOST_HELD_OUT
    # Pre-training uses no text of a held-out file.
    assert not set(result.texts) & {text for text in result.held_out_texts if len(text) > 200}


@pytest.mark.usefixtures("stdlib")
def test_the_split_depends_on_the_seed_only() -> None:
    one, same, other = (read_snippets(seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert {s.file for s in one.held_out} != {s.file for s in other.held_out}


@pytest.mark.usefixtures("stdlib")
def test_training_texts_are_all_files_that_are_not_held_out() -> None:
    result = read_snippets(exclude=EXCLUDE)
    assert "value = 1\nother = 2\n" * 40 in result.texts
    # 80 files of packages, and tests; one file of each package is held out.
    assert len(result.texts) + len(result.held_out_texts) == 80 + 4
    assert len(result.held_out_texts) == len({s.file for s in result.held_out})
    assert not any("import asyncio\n" * 5 in text for text in result.texts)


def test_the_three_recipes_share_their_files() -> None:
    one, *others = (
        options_of(f"{name}.toml") for name in ("recipe", "from_scratch", "pretrained/recipe")
    )
    assert others == [one, one]


def test_a_package_without_files_is_an_error(stdlib: Path) -> None:
    for path in (stdlib / "xmlrpc").iterdir():
        path.unlink()
    with pytest.raises(RecipeError, match=r"xmlrpc .*0\b"):
        read_snippets(exclude=EXCLUDE)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("asyncio/base.py", "asyncio"),
        ("xml/etree/tree.py", "xml"),
        ("json.py", None),
        ("re/_parser.py", "re"),
        ("test/test_re.py", "re"),
        ("test/test_readline.py", None),
        ("test/test_json/test_one.py", "json"),
        ("test/test_urllib2.py", "urllib"),
        ("test/test_xmlrpc.py", "xmlrpc"),
        ("test/test_xmlrpc_net.py", "xmlrpc"),
        ("test/test_xml_etree.py", "xml"),
        ("test/test_importlib/data/one.py", "importlib"),
        ("test/test_import/one.py", None),
        ("argparse.py", None),
        ("curses/panel.py", None),
    ],
)
def test_a_file_belongs_to_its_package_or_to_the_one_it_tests(
    name: str, package: str | None
) -> None:
    assert package_of(name) == package


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("import json", False),
        ("    import json.decoder as decoder", False),
        ("from json import loads", False),
        ("from test.test_json import PyTest", False),
        ("from . import near", False),
        ("from .decoder import one", False),
        ("import os, json", False),
        ("import os", True),
        ("from jsonlike import x", True),
        ("json.loads('1')", True),
        ("a = 1", True),
    ],
)
def test_only_imports_from_the_package_itself_are_left_out(line: str, stays: bool) -> None:
    code = [f"line_{i} = {i}" for i in range(LINES)]
    expected = [line, *code][:LINES] if stays else code
    assert cut([line, *code], "json", stride=2 * LINES) == ["\n".join(expected) + "\n"]


def test_snippets_start_every_stride_and_are_whole() -> None:
    lines = [f"line_{i}" for i in range(2 * LINES + 3)]
    assert [text.split("\n")[0] for text in cut(lines, "re", stride=LINES)] == [
        "line_0",
        f"line_{LINES}",
    ]
    assert len(cut(lines, "re", stride=1)) == LINES + 4
    assert all(text.count("\n") == LINES for text in cut(lines, "re", stride=3))
    assert cut(lines[: LINES - 1], "re", stride=1) == []


def test_a_snippet_that_names_its_package_is_known() -> None:
    label = PACKAGES.index("json")
    for text, named in [
        ("x = json.loads(y)", True),
        ("class JSONDecodeError", True),
        ("from_json(x)", True),
        ("jsonlike", False),
        ("myjson", False),
        ("JSONIFY", False),
        ("x = 1", False),
    ]:
        assert names_package(Snippet(text=text, label=label, file="f")) is named, text


def test_held_out_snippets_are_thinned_evenly(
    monkeypatch: pytest.MonkeyPatch, stdlib: Path
) -> None:
    assert stdlib.is_dir()
    every = read_snippets(exclude=EXCLUDE).held_out
    monkeypatch.setattr(corpus, "MOST_HELD_OUT", 3)
    few = read_snippets(exclude=EXCLUDE).held_out
    assert set(few) < set(every)
    assert max(Counter(s.label for s in few).values()) == 3
    first = [s for s in every if s.label == 0]
    kept = [first.index(s) for s in few if s.label == 0]
    assert kept == [0, len(first) // 3, 2 * len(first) // 3]


@pytest.mark.usefixtures("stdlib")
def test_both_tasks_have_the_data_of_the_split() -> None:
    result = read_snippets(exclude=EXCLUDE)
    labelled, texts = read_labelled(exclude=EXCLUDE), read_texts(exclude=EXCLUDE)
    assert labelled.labels == PACKAGES
    assert labelled.train == [(snippet.text, snippet.label) for snippet in result.train]
    assert labelled.held_out == [(snippet.text, snippet.label) for snippet in result.held_out]
    assert labelled.unlabelled == texts.train == result.texts
    assert texts.held_out == result.held_out_texts
    figures = labelled.figures()
    assert figures["held_out_files"] == 20
    # A random guess is right one time in twenty.
    assert isinstance(accuracy := figures["tfidf_held_out_accuracy"], float)
    assert accuracy > 0.3


# --- the trained model --------------------------------------------------------------------------


def test_the_card_shows_the_accuracy_of_the_training() -> None:
    # Measured on its bundle in tests/end_to_end/test_trained_models.py.
    figures = json.loads((MODEL / "training.json").read_text())
    card = (MODEL / "README.md").read_text()
    assert f"{figures['held_out_accuracy']:.3f}" in card
    assert f"{figures['tfidf_held_out_accuracy']:.3f}" in card
    assert load(MODEL, EncoderModel).config.head == ClassifierHead(
        labels=PACKAGES, pooling="first", activation="tanh"
    )


def test_the_trained_model_equals_transformers() -> None:
    texts = ["import os\nprint(os.getcwd())\n", "loop = get_event_loop()\nawait future\n" * 4]
    assert_like_transformers(MODEL, texts, window=160)
