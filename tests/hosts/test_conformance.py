"""Python, JavaScript and C compute what cases.json states; the table is in the guide."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import conformance
from tests.hosts.c_library import Built, arguments
from tests.hosts.conformance import Case
from tests.hosts.js_runs import run_tests
from tests.hosts.test_c_chat import converse

from ortolan.runtime import errors

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "browser.md"

TOLERANCE = 1e-4

CASES: list[Case] = json.loads(conformance.CASES.read_text())


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return conformance.write_bundles(tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="module")
def rows(bundles: dict[str, Path]) -> list[Case]:
    """Calls as JavaScript repeats them, with what Python returns now."""
    return conformance.computed(CASES, bundles)


def near(expected: Any) -> Any:
    """A result whose numbers may differ a little."""
    match expected:
        case float():
            return pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
        case dict():
            return {key: near(value) for key, value in expected.items()}
        case list():
            return [near(value) for value in expected]
    return expected


def test_the_file_has_all_cases() -> None:
    calls = [
        {key: value for key, value in case.items() if key not in ("result", "error")}
        for case in CASES
    ]
    assert calls == json.loads(json.dumps(conformance.all_cases()))


def test_in_python(rows: list[Case]) -> None:
    for case, row in zip(CASES, rows, strict=True):
        assert row.get("error") == case.get("error"), case
        got = json.loads(json.dumps(row.get("result")))
        assert got == near(case.get("result")), case


@pytest.mark.parametrize("device", ["cpu", "wasm"])
def test_in_node(rows: list[Case], device: str, tmp_path: Path) -> None:
    cases = [
        row | {key: case[key] for key in ("result", "error") if key in case}
        for case, row in zip(CASES, rows, strict=True)
    ]
    run_tests("calls", {"cases": cases, "tolerance": TOLERANCE, "device": device}, tmp_path)


# --- C ------------------------------------------------------------------------------------------


def in_c(built: Built, bundle: Path, case: Case) -> Case:
    """What C computes, as far as its programs print it, or the code of its error."""
    options = dict(case["options"])
    match case["method"], case["arguments"]:
        case "generate", [[*ids]] if all(isinstance(token, int) for token in ids):
            done = built.run("run", *run_arguments(bundle, ids, options))
            words = done.stdout.split("\n")[0].split()
            result = {"tokens": [*map(int, words[:-1])], "finishReason": (words or [""])[-1]}
        case "generate", [str(prompt)]:
            stops = [word for text in options["stop"] for word in ("--stop", text)]
            done = built.run("complete", bundle, options["max_new_tokens"], prompt, *stops)
            result = {"text": done.stdout, "finishReason": done.stderr.strip()}
        case "generate", [[*sources]] if "beams" in options:
            return {"refused": "no beam search"}
        case "generate", [[*sources]]:
            new = options["max_new_tokens"]
            said = [converse(built, bundle, "translate", text, new=new) for text in sources]
            return {"result": [{"text": text, "tokens": tokens} for text, tokens in said]}
        case "transcribe", [heard]:
            return heard_in_c(built, bundle, case, conformance.given(heard))
        case ("embed" | "classify") as task, [[*inputs]] if isinstance(inputs[0], str | list):
            texts = [text if isinstance(text, str) else "\n".join(text) for text in inputs]
            environment = {"TRUNCATE": "1"} if options.get("truncate") else {}
            own = built._replace(environment=built.environment | environment)
            done = own.run("encode", bundle, task, 0, "-", *texts)
            result = {"rows": done.stdout.splitlines()}
        case _:
            done = built.run("run", *run_arguments(bundle, [3], {"max_new_tokens": 1}))
            assert done.returncode == 1, f"C runs {bundle.name}: call it, and change the table"
            return {"refused": f"error `{done.stderr.partition(':')[0]}`"}
    return {"error": done.stderr.partition(":")[0]} if done.returncode else {"result": result}


def heard_in_c(built: Built, bundle: Path, case: Case, samples: Any) -> Case:
    """What C understands of a sound: a window, without times."""
    file, options = bundle.parent / "sound", case["options"]
    samples.tofile(file)
    words = [options["language"]] if "language" in options else []
    done = built.run("converse", bundle, "hear", 0, file, *words)
    code = done.stderr.strip().splitlines()[-1].partition(":")[0]
    if done.returncode and code == "kind":
        return {"refused": f"error `{code}`"}
    if "error" not in case and options.get("timestamps", True):
        return {"refused": "times of segments"}
    if done.returncode:
        return {"error": code}
    text, _, language = done.stdout.split("\0")[0].rpartition("|")
    return {"result": {"text": text.strip(), "language": language}}


def run_arguments(bundle: Path, ids: Sequence[int], options: Case) -> list[object]:
    """Arguments of hosts/c/tests/run.c."""
    own = dict(options)
    stop = tuple(own.pop("stop_tokens", ()))
    return arguments(bundle, [*ids], own.pop("max_new_tokens", 0), stop=stop, **own)


def numbers(rows: list[str], count: int) -> Any:
    """Rows of numbers in what hosts/c/tests/encode.c prints; of labels, by their names."""
    values = [[float(word) for word in row.split()] for row in rows[-count:]]
    names = rows[:-count]
    return [dict(zip(names, row, strict=True)) for row in values] if names else values


def check_in_c(case: Case, got: Case) -> None:
    """Compare what C computes with the case."""
    if "error" in case:
        assert got.get("error") == getattr(errors, case["error"]).code, (case, got)
        return
    assert "result" in got, (case, got)
    result, expected = got["result"], case["result"]
    if "rows" not in result:
        for one, own in zip(
            *(r if isinstance(r, list) else [r] for r in (result, expected)), strict=True
        ):
            assert one == {key: own[key] for key in one}, case
        return
    if case["method"] == "classify":
        expected = [{own["label"]: own["score"] for own in row["scores"]} for row in expected]
    assert numbers(result["rows"], len(expected)) == near(expected), case


def column(built: Built, bundles: dict[str, Path], cases: list[Case]) -> str:
    """What C computes of a group of cases."""
    refused, count = list[str](), 0
    for case in cases:
        got = in_c(built, bundles[case["bundle"]], case)
        if "refused" in got:
            refused.append(got["refused"])
            continue
        check_in_c(case, got)
        count += 1
    cells = [str(count)] * (count > 0)
    return "; ".join(cells + [f"refused: {', '.join(sorted({*refused}))}"] * bool(refused))


def test_in_c_and_the_table_of_the_guide(built: Built, bundles: dict[str, Path]) -> None:
    lines = [
        "| cases | bundles | Python | Node | WebAssembly | C |",
        "|---|---|---:|---:|---:|---|",
    ]
    for group, own in groupby(CASES, key=lambda case: case["group"]):
        cases = [*own]
        names = ", ".join(dict.fromkeys(case["bundle"] for case in cases))
        cell = column(built, bundles, cases)
        lines.append(f"| {group} | {names} |{f' {len(cases)} |' * 3} {cell} |")
    table = "\n".join(lines)
    print(table)
    assert table in GUIDE.read_text(), table
