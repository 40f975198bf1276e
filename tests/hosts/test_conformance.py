"""Python, JavaScript and C compute what cases.json states; the table is in the guide."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.arm import machine, test_arm
from tests.hosts import conformance
from tests.hosts.c_library import Built, arguments, build
from tests.hosts.chromium import chromium, run_node, served
from tests.hosts.conformance import Case
from tests.hosts.conformance_table import check_column
from tests.hosts.js_runs import run_tests
from tests.hosts.node_package import PACKAGE
from tests.hosts.test_c_chat import converse

from ortolan.runtime import errors

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4

ARM_COMPILER = "aarch64-linux-gnu-gcc"

COLUMNS = {"wasm": "Chromium", "webgpu": "Chromium, WebGPU"}

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


def as_in_the_file(rows: list[Case]) -> list[Case]:
    """Calls with the results of the file."""
    results = [{key: case[key] for key in ("result", "error") if key in case} for case in CASES]
    return [row | own for row, own in zip(rows, results, strict=True)]


@pytest.mark.parametrize("device", ["cpu", "wasm"])
def test_in_node(rows: list[Case], device: str, tmp_path: Path) -> None:
    cases = as_in_the_file(rows)
    run_tests("calls", {"cases": cases, "tolerance": TOLERANCE, "device": device}, tmp_path)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_in_chromium(
    rows: list[Case], device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program = chromium()
    run_node("demo/build.mjs", tmp_path / "page")
    (tmp_path / "src").symlink_to(tmp_path / "page" / "lib")
    (tmp_path / "test").symlink_to(PACKAGE / "test")
    bundles = {row["bundle"]: f"bundle-{index}" for index, row in enumerate(rows)}
    for path, name in bundles.items():
        shutil.copytree(path, tmp_path / name)
    cases = [row | {"bundle": bundles[row["bundle"]]} for row in as_in_the_file(rows)]
    document = {"cases": cases, "tolerance": TOLERANCE, "device": device}
    (tmp_path / "cases.json").write_text(json.dumps(document))
    with served(tmp_path) as address:
        results = json.loads(run_node("test/browser_calls.mjs", program, address))
    notes = list[str | None]()
    for case, result in zip(CASES, results, strict=True):
        assert not result["differences"], (case, result)
        notes.append(f"refused: `{result['refused'][0]}`" if "refused" in result else None)
    check_column(COLUMNS[device], CASES, notes, update=request.config.option.update_snapshots)


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


def notes_of_c(built: Built, bundles: dict[str, Path]) -> list[str | None]:
    """Compare all cases, and say which are refused."""
    notes = list[str | None]()
    for case in CASES:
        got = in_c(built, bundles[case["bundle"]], case)
        if "refused" not in got:
            check_in_c(case, got)
        notes.append(f"refused: {got['refused']}" if "refused" in got else None)
    return notes


def test_in_c(built: Built, bundles: dict[str, Path], request: pytest.FixtureRequest) -> None:
    notes = notes_of_c(built, bundles)
    check_column("C", CASES, notes, update=request.config.option.update_snapshots)


@pytest.mark.skipif(shutil.which(ARM_COMPILER) is None, reason=f"needs {ARM_COMPILER}")
def test_in_c_on_arm(bundles: dict[str, Path], tmp_path: Path) -> None:
    if reason := machine.missing(test_arm.MACHINE):
        pytest.skip(reason)
    library = test_arm.MACHINE / "packages" / "onnxruntime" / "capi"
    arm = build(
        tmp_path / "c",
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DORTOLAN_PCRE2=OFF"),
        *(f"-DCMAKE_C_COMPILER={ARM_COMPILER}", f"-DONNXRUNTIME_DIR={library}"),
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-in-shared-libs",
    )
    cpu = "cortex-a76"
    arm = arm._replace(runner=(machine.QEMU, "-cpu", cpu, "-L", str(test_arm.MACHINE / cpu)))
    assert any(note is None for note in notes_of_c(arm, bundles))
