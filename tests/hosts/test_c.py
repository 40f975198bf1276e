"""The C library of hosts/c computes what the Python runtime computes."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.export.test_windows import LAYERS, SHAPE
from tests.hosts import c_mutants
from tests.hosts.c_library import HOST, REPOSITORY, Built, arguments, failure, random_ids
from tests.hosts.conftest import KINDS
from tests.runtime.damaged_bundles import edit_json, put, reseal
from tests.runtime.tiny_decoder import VOCABULARY, tokenizer_json, write_bundle

import ortolan
from ortolan import Sampling

pytestmark = pytest.mark.slow

PROMPT = "def read_lines(path):"
SHA256 = hashlib.sha256(b"graph").hexdigest()


@pytest.fixture(scope="session", params=["fp32", "int4"])
def pythonic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pythonic") / request.param
    ortolan.export(REPOSITORY / "models" / "pythonic", folder, precision=request.param)
    return folder


def expected(bundle: Path, prompt: list[int], new: int, **options: Any) -> list[int]:
    """Ids of the Python runtime."""
    model = ortolan.load(bundle)
    return [
        *model.generate(
            prompt, max_new_tokens=new, sampling=Sampling(**options) if options else None
        ).tokens
    ]


# --- the same tokens ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 1, 2**32, 2**63 - 1])
def test_tokens_of_a_trained_model_equal_those_of_python(
    built: Built, pythonic: Path, seed: int | None
) -> None:
    model = ortolan.load(pythonic)
    prompt = model.tokenizer.encode(PROMPT)
    options: dict[str, Any] = {} if seed is None else {"temperature": 0.9, "seed": seed}
    reference = expected(pythonic, prompt, 48, **options)
    assert built.generate(pythonic, prompt, 48, **options) == reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 300])
def test_tokens_equal_those_of_python_however_a_decoder_is_called(
    built: Built, tiny: dict[str, Path], kind: str, length: int
) -> None:
    prompt = random_ids(length)
    new = 40 if length < 300 else 300  # past two changes of the capacity
    assert built.generate(tiny[kind], prompt, new) == expected(tiny[kind], prompt, new)


def test_no_limit_of_new_tokens_fills_the_context_or_the_array(
    built: Built, tiny: dict[str, Path]
) -> None:
    prompt, bundle = random_ids(5), tiny["unified"]
    tokens = [*ortolan.load(bundle).generate(prompt, max_new_tokens=None).tokens]
    assert built.generate(bundle, prompt, 0) == tokens
    assert built.generate(bundle, prompt, 0, capacity=7) == tokens[:7]


@pytest.mark.parametrize(("kind", "layers"), [("MistralConfig", {}), ("Gemma3TextConfig", LAYERS)])
def test_tokens_of_layers_with_a_window_equal_those_of_python(
    built: Built, tmp_path: Path, kind: str, layers: dict[str, Any]
) -> None:
    shape = {**SHAPE, **layers, "max_position_embeddings": 3000}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, kind)(**shape)
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path / "checkpoint")
    bundle = tmp_path / "bundle"
    options = ortolan.ExportOptions(proof="quick", allow_poor=True)
    ortolan.export(tmp_path / "checkpoint", bundle, precision="fp32", options=options)
    states = json.loads((bundle / "manifest.json").read_text())["states"]
    assert any("window" in state for state in states)
    prompt = [3 + token % 61 for token in random_ids(1500)]
    assert built.generate(bundle, prompt, 300) == expected(bundle, prompt, 300)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.3},
        {"temperature": 1e-3},
        {"temperature": 1, "top_k": 1},
        {"temperature": 2, "top_k": 7},
        {"temperature": 1, "top_p": 0.5},
        {"temperature": 2, "top_p": 0.95, "top_k": 50, "min_p": 0.02},
        {"temperature": 1, "min_p": 0.3},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": -0.4},
        {"temperature": 1, "repetition_penalty": 0.8, "frequency_penalty": 1.1},
        {"temperature": 1, "presence_penalty": -2},
    ],
    ids=str,
)
def test_each_sampling_option_has_the_effect_that_it_has_in_python(
    built: Built, tiny: dict[str, Path], options: dict[str, Any]
) -> None:
    prompt = random_ids(30)
    for seed in (3, 4):
        reference = expected(tiny["unified"], prompt, 64, seed=seed, **options)
        assert built.generate(tiny["unified"], prompt, 64, seed=seed, **options) == reference


def test_suppressed_tokens_are_never_generated_and_stop_tokens_end(
    built: Built, tiny: dict[str, Path]
) -> None:
    bundle, prompt = tiny["unified"], random_ids(9)
    options: dict[str, Any] = {"temperature": 2, "seed": 5}
    tokens = built.generate(bundle, prompt, 200, **options)
    assert not {5, 6} & set(tokens)
    stop = tokens[20]
    first = tokens.index(stop)
    assert built.generate(bundle, prompt, 200, stop=(stop,), **options) == tokens[: first + 1]
    longer = built.generate(bundle, prompt, 200, stop=(stop,), min_new_tokens=40, **options)
    assert stop not in longer[:40]


def test_empty_prompt_stands_for_bos_and_context_is_the_limit(
    built: Built, tiny: dict[str, Path]
) -> None:
    bundle = tiny["unified"]
    assert built.generate(bundle, [], 20) == expected(bundle, [3], 20)
    assert len(built.generate(bundle, random_ids(1000), 0)) == 100


# --- verification -------------------------------------------------------------------------------


def test_verify_passes_with_the_figures_of_python(built: Built, pythonic: Path) -> None:
    done = built.run("verify", pythonic)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASS")
    certificate = json.loads((pythonic / "certificate.json").read_text())
    measured = certificate["measured"]["phases"]
    parts = [measured["prefill"], measured["decode"]]
    total = sum(part["positions"] for part in parts)
    mean = sum(part["mean_kl"] * part["positions"] for part in parts) / total
    figure = float(re.search(r"mean KL (\S+)", done.stdout).group(1))  # type: ignore[union-attr]
    assert f"{total} positions" in done.stdout
    assert figure == pytest.approx(mean, rel=0.1, abs=1e-9)


def test_verify_fails_for_a_changed_weight(built: Built, copied: Path) -> None:
    (weights,) = copied.glob("weights-*.bin")
    data = np.fromfile(weights, np.float32)
    data[64:96] += 3
    data.tofile(weights)
    reseal(copied)
    done = built.run("verify", copied)
    assert (done.returncode, done.stdout[:4]) == (1, "FAIL"), done.stderr


@pytest.mark.parametrize(
    ("expected_files", "changed"),
    [
        ({"decoder.onnx": "0" * 64}, "decoder.onnx"),
        ({"decode.onnx": "0" * 64}, "manifest.json"),
        ({"other.onnx": SHA256}, "decoder.onnx"),  # as exported, but not the graph in use
        ({}, "decoder.onnx"),
    ],
)
def test_verify_fails_for_a_graph_that_is_not_the_exported_one(
    built: Built, tmp_path: Path, expected_files: dict[str, Any], changed: str
) -> None:
    bundle = write_bundle(tmp_path / "bundle", others={"other.onnx": b"graph"}).path
    around = {"meanings": "0" * 64, "files": expected_files}
    edit_json(bundle, "certificate.json", put("surroundings", value=around))
    done = built.run("verify", bundle)
    assert (done.returncode, done.stdout[:4]) == (1, "FAIL"), done.stderr
    assert f"{changed} differs from the export" in done.stdout


def test_bundle_without_a_certificate_runs_but_cannot_be_verified(
    built: Built, copied: Path
) -> None:
    tokens = built.generate(copied, [1], 8)
    edit_json(
        copied,
        "manifest.json",
        lambda manifest: manifest.update(certificate=None, unverified="imported"),
    )
    assert built.generate(copied, [1], 8) == tokens
    done = built.run("verify", copied)
    assert done.stderr.startswith("certificate: This bundle has no certificate")


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_every_shortage_of_memory_is_an_error_that_says_so(built: Built, pythonic: Path) -> None:
    """From a limit that only fits the libraries up to one that fits everything."""
    few, many = (
        [*map(str, arguments(pythonic, random_ids(prompt), new))]
        for prompt, new in ((1, 1), (600, 100))
    )
    expected, outcomes, opened = built.run("run", *many).stdout, set(), False
    for limit in range(32 << 20, 256 << 20, 1 << 20):
        within = ("prlimit", f"--as={limit}")
        opened = opened or built.run("run", *few, before=within).returncode == 0
        done = built.run("run", *many, before=within)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode == 0:
            assert done.stdout == expected
            break
        if not opened and not last.startswith("memory: "):
            continue  # the loader, the C++ library or onnxruntime end the process as they start
        assert done.returncode == 1, (limit, done.returncode, done.stderr)
        assert last.startswith("memory: "), (limit, done.stderr)
        outcomes.add(re.sub(r"\W+", " ", last)[:50])
    assert done.returncode == 0
    # onnxruntime starts, a graph opens, the cache grows or a graph runs
    assert len(outcomes) >= 2, outcomes


def test_sanitizers_find_nothing(sanitized: Built, tiny: dict[str, Path]) -> None:
    for kind, bundle in tiny.items():
        sampling: dict[str, Any] = {
            "temperature": 1,
            "top_k": 20,
            "top_p": 0.9,
            "repetition_penalty": 1.1,
        }
        assert len(sanitized.generate(bundle, random_ids(250), 300, **sampling)) == 300, kind
        done = sanitized.run("verify", bundle)
        assert done.returncode == 0, done.stderr
    assert "input: prompt" in failure(sanitized, tiny["unified"], [VOCABULARY])


def test_sanitizers_find_nothing_in_damaged_manifests(sanitized: Built, copied: Path) -> None:
    path = copied / "manifest.json"
    text, generator = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(text)
        for position in generator.integers(0, len(data), 3):
            data[position] = generator.choice(list(b'{}[]",:09-.ebn'))
        path.write_bytes(data)
        done = sanitized.run("run", *arguments(copied, [1], 2))
        assert done.returncode in (0, 1), done.stderr
        assert "Sanitizer" not in done.stderr


def test_changed_bundles_work_or_are_refused_with_a_typed_error(
    sanitized: Built, tmp_path: Path
) -> None:
    names = [f"{kind}/1/{number}" for number in range(40) for kind in ("decoder", "embeddings")]
    results = c_mutants.outcomes(sanitized, tmp_path, ("decoder", "embeddings"), names)
    assert results["decoder: open ok"] > 0 < results["decoder: open manifest"]


@pytest.mark.parametrize("name", ["manifest.json", "certificate.json"])
def test_mutated_json_never_reads_outside_of_memory(
    sanitized: Built, tiny: dict[str, Path], name: str
) -> None:
    done = sanitized.run("fuzz_json", tiny["unified"] / name, 5000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ of 5000\n", done.stdout)


def test_rounds_of_opening_aborting_and_closing_keep_no_memory(
    built: Built, sanitized: Built, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json()).path
    done = built.run("rounds", bundle, 1000)
    in_use = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(in_use) == 10, done.stderr
    # telemetry alone would keep 60 bytes a round
    assert in_use[-1] - in_use[-5] < 10_000, in_use
    done = sanitized.run("rounds", bundle, 20)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_valgrind_finds_nothing(built: Built, tiny: dict[str, Path]) -> None:
    suppressions = HOST / "tests" / "valgrind.txt"
    words = ("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full")
    program = (*words, "--errors-for-leak-kinds=definite", f"--suppressions={suppressions}")
    done = built.run(
        "run",
        *arguments(tiny["unified"], random_ids(250), 10, temperature=1, top_p=0.9),
        before=program,
    )
    assert done.returncode == 0, done.stderr


# --- the guide ----------------------------------------------------------------------------------


def test_program_of_the_guide_compiles_and_runs(
    built: Built, pythonic: Path, tmp_path: Path
) -> None:
    text = (REPOSITORY / "docs" / "guides" / "c.md").read_text()
    (program,) = re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)
    source, target = tmp_path / "program.c", tmp_path / "program"
    source.write_text(program)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HOST}"]
    (links,) = re.findall("^Libs: (.*)$", (built.folder / "ortolan.pc").read_text(), re.M)
    subprocess.run(["cc", *flags, str(source), "-o", str(target), *links.split()], check=True)
    (tmp_path / "bundle").symlink_to(pythonic)
    done = subprocess.run([target], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sampling = Sampling(temperature=0.8, seed=1)
    completion = ortolan.load(pythonic).generate(PROMPT, max_new_tokens=64, sampling=sampling)
    assert done.stdout == completion.text


@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
def test_program_in_rust_generates_the_same_tokens(
    built: Built, tiny: dict[str, Path], tmp_path: Path
) -> None:
    project = shutil.copytree(HOST / "examples" / "rust", tmp_path / "rust")
    environment = os.environ | {"ORTOLAN_BUILD": str(built.folder)}
    command = ["cargo", "run", "--quiet", "--offline", "--", str(tiny["unified"]), "20", "1", "2"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == built.generate(tiny["unified"], [1, 2], 20)
