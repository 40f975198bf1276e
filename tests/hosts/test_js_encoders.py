"""Encoders in JavaScript against Python: the same bundles, calls, results and errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from tests.hosts.js_cases import Calls
from tests.hosts.js_runs import run_tests
from tests.runtime import tiny_encoder
from tests.runtime.damaged_bundles import edit_json, reseal

TEXTS = ["a b c", "🙂 d", "e f g h i j k a b c d e", "a", "b 日本 c", "a b"]

ENTAILMENT = ("contradiction", "neutral", "entailment")

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", *(f"X-{n}-y" for n in range(11)))


def bundle(
    folder: Path, output: str, graph: Any, labels: Sequence[str] = (), size: int = 0
) -> Path:
    """A bundle of a tiny graph, with another output in its manifest."""
    tiny_encoder.write_bundle(folder, kind=graph)
    if size:
        model = onnx.load(folder / "encoder.onnx")
        (weight,) = [w for w in model.graph.initializer if w.name == "vocabulary"]
        weight.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(weight)[:, :size], weight.name)
        )
        onnx.save(model, folder / "encoder.onnx")

    def edit(manifest: Any) -> None:
        own = manifest["output"]
        own |= {"kind": output, "size": size or own["size"]}
        own.pop("labels", None)
        if labels:
            own["labels"] = [*labels]

    edit_json(folder, "manifest.json", edit)
    return folder


def with_mask(folder: Path) -> Path:
    """Make the word `l` a blank."""
    document = json.loads((folder / "tokenizer.json").read_text())
    mask = document["model"]["vocab"].pop("l")
    document["model"]["vocab"]["[MASK]"] = mask
    token = document["added_tokens"][0] | {"id": mask, "content": "[MASK]"}
    document["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    reseal(folder)
    return folder


def with_prompts(folder: Path) -> Path:
    def edit(manifest: Any) -> None:
        prompts = {"query": "a b ", "passage": "c "}
        manifest["source"] |= {"prompts": prompts, "default_prompt": "passage"}

    edit_json(folder, "manifest.json", edit)
    return folder


def embeddings(folder: Path) -> Calls:
    calls = Calls(with_prompts(bundle(folder, "embedding", "embedding")))
    calls.add("embed", TEXTS)
    calls.add("embed", "a b c", prompt="query")
    calls.add("embed", [[4, 5, 6], [7]], prompt="")
    calls.add("embed", [])
    calls.add("embed", [*TEXTS, " ".join("abcdefghijkl" * 4)], truncate=True)
    for wrong in ("", "a " * 30, [4, 99], [[4], []], 3):
        calls.add("embed", wrong)
    calls.add("embed", "a", prompt="other")
    calls.add("embed", [4, 5], prompt="query")
    calls.add("embed", "a", truncate=1)
    calls.add("classify", "a")
    return calls


def classifiers(folder: Path) -> list[Calls]:
    each = []
    for kind in ("labels", "tags", "scores"):
        calls = Calls(bundle(folder / kind, kind, kind, ("x", "y", "x")))
        calls.add("classify", TEXTS)
        calls.add("classify", [["a b", "c"], ["d", "e f g"]])
        calls.add("embed", "a")
        calls.add("classify_tokens", "a")
        each.append(calls)
    judge = Calls(bundle(folder / "judge", "labels", "labels", ENTAILMENT))
    for options in ({}, {"multi_label": True}, {"template": "b {} c"}):
        judge.add("classify_as", TEXTS[:3], ["a", "b c", "🙂"], **options)
    judge.add("classify_as", "a b", ["a"])
    for wrong in ([], "a", ["a", "a"], ["a", " "]):
        judge.add("classify_as", "a", wrong)
    judge.add("classify_as", "a", ["a"], template="b")
    judge.add("classify_as", [4, 5], ["a"])
    single = Calls(bundle(folder / "single", "labels", "labels", ("no", "perhaps", "yes")))
    single.add("classify_as", "a", ["b"])
    return [*each, judge, single]


def taggers(folder: Path) -> list[Calls]:
    tags = Calls(bundle(folder / "tags", "token_labels", "logits", TAGS))
    for aggregation in ("none", "simple", "first", "average", "max", "other"):
        tags.add("classify_tokens", TEXTS, aggregation=aggregation)
    tags.add("classify_tokens", "👩 a, b🙂c d")
    tags.add("classify_tokens", [4, 5])
    spans = Calls(bundle(folder / "spans", "spans", "logits", ("start", "end"), 2))
    context = "a 🙂 b c, d e f g h i j k a b c d e f g h"
    for options in ({}, {"stride": 4}, {"max_answer_tokens": 2}, {"allow_none": True}):
        spans.add("answer", "a b", context, **options)
    spans.add("answer", "a b c d e f g h i j k a b c d", context)
    for wrong in ({"stride": -1}, {"max_answer_tokens": 0}):
        spans.add("answer", "a", "b", **wrong)
    spans.add("answer", " ", "b")
    words = Calls(with_mask(bundle(folder / "words", "logits", "logits")))
    for top in (1, 5):
        words.add("fill", "a [MASK] b c [MASK] 🙂", top=top)
    words.add("fill", "a b")
    words.add("fill", "[MASK]", top=0)
    words.add("logits", ["a b", "🙂 c d"])
    states = Calls(bundle(folder / "states", "states", "states"))
    states.add("states", TEXTS)
    states.add("logits", "a")
    return [tags, spans, words, states]


@pytest.mark.slow
def test_encoders_equal_those_of_python(tmp_path: Path) -> None:
    calls = [embeddings(tmp_path / "e"), *classifiers(tmp_path / "c"), *taggers(tmp_path / "t")]
    tiny_encoder.write_bundle(tmp_path / "poisoned", kind="embedding", poisoned=5)
    poisoned = Calls(tmp_path / "poisoned")
    poisoned.add("embed", ["a", "b"])
    bare = tmp_path / "bare"
    tiny_encoder.write_bundle(bare, kind="embedding", tokenizer=False)
    without = Calls(bare)
    without.add("embed", [[4, 5]])
    without.add("embed", "a")
    cases = [case for own in (*calls, poisoned, without) for case in own.cases]
    run_tests("calls", {"cases": cases, "tolerance": 1e-5}, tmp_path)
