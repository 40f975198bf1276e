"""The C library of hosts/c computes what the Python runtime computes.

Needs CMake, a C compiler, and onnxruntime_c_api.h, which `make onnxruntime-header` downloads.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.hosts import header
from tests.runtime.damaged_bundles import give_settings
from tests.runtime.tiny_decoder import VOCABULARY, write_bundle

import ortolan
from ortolan import Sampling
from ortolan.runtime.bundle.manifest import Tokens

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
HOST = REPOSITORY / "hosts" / "c"
LIBRARY = Path(str(distribution("onnxruntime").locate_file("onnxruntime/capi")))
PROMPT = "def read_lines(path):"
KINDS = ("unified", "split", "recurrent", "by-token")
SHA256 = hashlib.sha256(b"graph").hexdigest()


class Built(NamedTuple):
    """A build folder, and the environment of its programs."""

    folder: Path
    environment: dict[str, str]

    def run(
        self, program: str, *arguments: object, before: tuple[str, ...] = (), text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program; `before` are the words of one that runs it."""
        return subprocess.run(
            [*before, self.folder / program, *map(str, arguments)],
            env=os.environ | self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=280,
        )

    def generate(
        self,
        bundle: Path,
        prompt: list[int],
        new: int,
        *,
        stop: tuple[int, ...] = (),
        **options: Any,
    ) -> list[int]:
        """Generate twice, check that both are equal and finish, and return the ids."""
        done = self.run("run", *arguments(bundle, prompt, new, stop=stop, **options))
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == second
        return [int(word) for word in first.split()[:-1]]


def arguments(
    bundle: Path,
    prompt: list[int],
    new: int,
    *,
    capacity: int = 60_000,
    stop: tuple[int, ...] = (),
    **options: Any,
) -> list[object]:
    """Arguments of hosts/c/tests/run.c."""
    defaults = {
        "min_new_tokens": 0,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "seed": 0,
    }
    values = (defaults | options).values()
    assert len(values) == len(defaults), options
    return [bundle, new, capacity, *values, len(stop), *stop, *prompt]


def build(folder: Path, *options: str) -> Built:
    """Build the library and its programs, or skip the test where a tool is missing."""
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("needs cmake and a C compiler")
    include = header.find()
    if include is None:
        pytest.skip("needs onnxruntime_c_api.h. Run `make onnxruntime-header`")
    configure = ["cmake", "-S", str(HOST), "-B", str(folder), f"-DONNXRUNTIME_INCLUDE={include}"]
    flags = [f"-DONNXRUNTIME_DIR={LIBRARY}", "-DCMAKE_C_FLAGS=-Werror", *options]
    for command in ([*configure, *flags], ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder, {})


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("c-sanitized")
    leaks = f"suppressions={HOST / 'tests' / 'leaks.txt'}:print_suppressions=0"
    return build(folder, "-DORTOLAN_SANITIZE=address,undefined")._replace(
        environment={"LSAN_OPTIONS": leaks, "ASAN_OPTIONS": "detect_stack_use_after_return=1"}
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles with random weights, one for each way to call a decoder."""
    folder = tmp_path_factory.mktemp("tiny")
    write_bundle(folder / "unified", tokens=Tokens(bos=3, suppressed=(5, 6)))
    write_bundle(folder / "split", split=True)
    write_bundle(folder / "recurrent", recurrent=True)
    write_bundle(folder / "by-token", recurrent=True, takes_one=True)
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="session", params=["fp32", "int4"])
def pythonic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pythonic") / request.param
    ortolan.export(REPOSITORY / "models" / "pythonic", folder, precision=request.param)
    return folder


@pytest.fixture
def copied(tiny: dict[str, Path], tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(tiny["unified"], tmp_path / "bundle"))


def expected(bundle: Path, prompt: list[int], new: int, **options: Any) -> list[int]:
    """Ids of the Python runtime."""
    model = ortolan.load(bundle)
    return [
        *model.generate(
            prompt, max_new_tokens=new, sampling=Sampling(**options) if options else None
        ).tokens
    ]


def random_ids(count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(count).integers(0, VOCABULARY, count).tolist()
    return ids


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def rehash(bundle: Path, name: str) -> None:
    """Enter the new size and hash of a file into the manifest."""
    data = (bundle / name).read_bytes()
    entry = {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def change(manifest: dict[str, Any]) -> None:
        files = [entry if file["name"] == name else file for file in manifest["files"]]
        manifest["files"] = files

    edit(bundle, change)


# --- the same tokens ----------------------------------------------------------------------------


def test_greedy_tokens_of_a_trained_model_equal_those_of_python(
    built: Built, pythonic: Path
) -> None:
    model = ortolan.load(pythonic)
    reference = model.generate(PROMPT, max_new_tokens=32)
    prompt = model.tokenizer.encode(PROMPT)
    assert built.generate(pythonic, prompt, 32) == list(reference.tokens)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1])
def test_sampled_tokens_of_a_trained_model_equal_those_of_python(
    built: Built, pythonic: Path, seed: int
) -> None:
    model = ortolan.load(pythonic)
    prompt = model.tokenizer.encode(PROMPT)
    options: dict[str, Any] = {"temperature": 0.9, "seed": seed}
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


def test_bundle_of_schema_3_generates_the_same_tokens(built: Built, copied: Path) -> None:
    tokens = built.generate(copied, [1], 30)

    def older(manifest: dict[str, Any]) -> None:
        manifest["schema"] = 3
        del manifest["host"]["cache"], manifest["host"]["session"]["config_entries"]

    edit(copied, older)
    assert built.generate(copied, [1], 30) == tokens


def test_bundle_of_schema_2_generates_the_same_tokens(built: Built, copied: Path) -> None:
    tokens = built.generate(copied, [1], 30)
    edit(copied, lambda manifest: (manifest.update(schema=2), manifest.pop("host")))
    assert built.generate(copied, [1], 30) == tokens == expected(copied, [1], 30)


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


@pytest.mark.parametrize("kind", KINDS)
def test_verify_passes_however_a_decoder_is_called(
    built: Built, tiny: dict[str, Path], kind: str
) -> None:
    done = built.run("verify", tiny[kind])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS")


def test_verify_fails_for_a_changed_weight(built: Built, copied: Path) -> None:
    (weights,) = copied.glob("weights-*.bin")
    data = np.fromfile(weights, np.float32)
    data[64:96] += 3
    data.tofile(weights)
    rehash(copied, weights.name)
    done = built.run("verify", copied)
    assert (done.returncode, done.stdout[:4]) == (1, "FAIL"), done.stderr


@pytest.mark.parametrize(
    ("expected_files", "changed"),
    [
        ({"decoder.onnx": "0" * 64}, "decoder.onnx"),
        ({"decode.onnx": "0" * 64}, "manifest.json"),
        ({"other.onnx": SHA256}, "decoder.onnx"),  # as exported, but not the graph in use
        ({}, None),
    ],
)
def test_verify_fails_for_a_graph_that_is_not_the_exported_one(
    built: Built, tmp_path: Path, expected_files: dict[str, Any], changed: str | None
) -> None:
    bundle = write_bundle(tmp_path / "bundle", others={"other.onnx": b"graph"}).path
    path = bundle / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["surroundings"] = {"meanings": "0" * 64, "files": expected_files}
    path.write_text(json.dumps(certificate))
    rehash(bundle, path.name)
    done = built.run("verify", bundle)
    verdict = "PASS" if changed is None else "FAIL"
    assert (done.returncode, done.stdout[:4]) == (int(changed is not None), verdict), done.stderr
    assert (f"{changed} differs from the export" in done.stdout) == (changed is not None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema=9), "`schema` must be"),
        (lambda c: c.update(schema=2), "schema 2 of an older version"),
        (lambda c: c["arrays"].pop(0), r"`arrays\.lengths` must be"),
        (lambda c: c["arrays"][0].update(offset=2), "inside of the file"),
        (lambda c: c["arrays"][0].update(offset=1 << 40), "inside of the file"),
        (lambda c: c["arrays"][0].update(shape=[-1]), "inside of the file"),
        (lambda c: c["thresholds"].update(mean_kl=None), "`thresholds.mean_kl`"),
        (lambda c: c.update(probes=[]), "at least one probe"),
    ],
)
def test_verify_rejects_a_damaged_certificate(
    built: Built, copied: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = copied / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["arrays"].sort(key=lambda array: array["name"] != "lengths")
    change(certificate)
    path.write_text(json.dumps(certificate))
    rehash(copied, path.name)
    done = built.run("verify", copied)
    assert (done.returncode, done.stderr[:12]) == (2, "certificate:"), done.stdout
    assert re.search(message, done.stderr), done.stderr


def test_bundle_without_a_certificate_runs_but_cannot_be_verified(
    built: Built, copied: Path
) -> None:
    tokens = built.generate(copied, [1], 8)
    edit(copied, lambda manifest: manifest.update(certificate=None, unverified="imported"))
    assert built.generate(copied, [1], 8) == tokens
    done = built.run("verify", copied)
    assert done.stderr.startswith("certificate: This bundle has no certificate")


# --- errors -------------------------------------------------------------------------------------


def failure(built: Built, bundle: Path, prompt: list[int], new: int = 4, **options: Any) -> str:
    done = built.run("run", *arguments(bundle, prompt, new, **options))
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema=6), "manifest: manifest.json has schema 6; .* reads 2 to 5"),
        (lambda m: m.update(kind="encoder"), "kind: This bundle is of the kind encoder"),
        (lambda m: m.update(devices=["cuda"]), "device: .* not exported for a CPU"),
        (lambda m: m.update(news=1), "manifest: .*`news` of `the document` is unknown"),
        (lambda m: m["host"].update(news=1), "manifest: .*`news` of `host` is unknown"),
        (lambda m: m.pop("host"), "manifest: .*`host` must be an object"),
        (lambda m: m.update(vocab_size=0), "manifest: .*`vocab_size` must be a whole number"),
        (lambda m: m.update(context_length=1.5), "manifest: .*`context_length` must be"),
        (lambda m: m["files"][0].update(name="../x"), "manifest: .*`files.name` must be a file"),
        (lambda m: m["files"][0].update(sha256="0" * 63), "manifest: .*`files.sha256` must be"),
        (lambda m: m["files"].append(m["files"][0]), "manifest: .*different for every file"),
        (lambda m: m.update(weights=["other.bin"]), "manifest: .*a name among `files`"),
        (lambda m: m["graphs"].clear(), "manifest: .*`graphs.prefill` must be an object"),
        (lambda m: m["states"][0].update(dtype="float64"), "manifest: .*`states.dtype`"),
        (lambda m: m["states"][0].update(shape=["batch", 1 << 40]), "manifest: .*`states.shape`"),
        (lambda m: m["states"][0].update(input="other"), "graph: .*names in manifest.json"),
        (lambda m: m["states"].pop(), "graph: .*names in manifest.json"),
        (lambda m: m["tokens"].update(eos=[97]), "manifest: .*ids within the vocabulary"),
        (
            lambda m: m["host"]["session"]["environment"].update(LD_PRELOAD="x"),
            "manifest: .*the name ORT_GQA_DISABLE_FLASH_ATTENTION",
        ),
        (
            lambda m: m["host"]["session"]["environment"].update(ORT_LOAD_CONFIG_FROM_MODEL="1"),
            "manifest: .*the name ORT_GQA_DISABLE_FLASH_ATTENTION",
        ),
        (
            lambda m: m["host"]["session"]["config_entries"].update({"session.x": "1"}),
            "manifest: .*names that begin with mlas.",
        ),
    ],
)
def test_wrong_manifest_is_rejected(
    built: Built, copied: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(copied, change)
    assert re.match(message, failure(built, copied, [1]))


def test_missing_cut_and_altered_files_are_rejected(built: Built, copied: Path) -> None:
    graph = copied / "decoder.onnx"
    data = graph.read_bytes()
    graph.write_bytes(data[:-1])
    size = len(data)
    assert f"decoder.onnx must have {size} bytes (got {size - 1})" in failure(built, copied, [1])
    graph.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "bundle-file: decoder.onnx was altered" in failure(built, copied, [1])
    graph.unlink()
    assert "bundle-file: decoder.onnx cannot be opened: No such" in failure(built, copied, [1])
    (copied / "other").write_bytes(data)
    graph.symlink_to("other")
    assert "decoder.onnx cannot be opened: it is a symbolic link" in failure(built, copied, [1])
    graph.unlink()
    os.mkfifo(graph)
    assert "decoder.onnx is not a plain file" in failure(built, copied, [1])
    graph.unlink()
    graph.write_bytes(b"no graph")
    rehash(copied, graph.name)
    assert re.match("graph: onnxruntime .* cannot load the graph", failure(built, copied, [1]))
    assert "bundle-not-found" in failure(built, copied / "nowhere", [1])
    (copied / "manifest.json").write_text('{"schema": 3,}')
    assert "manifest: manifest.json is not valid JSON: a key is missing (at byte 13)" in failure(
        built, copied, [1]
    )


def test_settings_in_a_graph_are_rejected_even_if_the_user_allows_them(
    built: Built, copied: Path
) -> None:
    give_settings(copied / "decoder.onnx")
    rehash(copied, "decoder.onnx")
    allowing = built._replace(environment={"ORT_LOAD_CONFIG_FROM_MODEL": "1"})
    assert "graph: decoder.onnx has settings" in failure(allowing, copied, [1])


def test_files_of_all_sizes_around_a_block_have_their_hash(built: Built, tmp_path: Path) -> None:
    sizes = [0, 1, 55, 56, 63, 64, 65, 119, 120, 65535, 65536, 65537]
    others = {f"{size}.txt": bytes(range(256)) * (size // 256 + 1) for size in sizes}
    others = {name: data[: int(name[:-4])] for name, data in others.items()}
    write_bundle(tmp_path / "bundle", others=others)
    assert len(built.generate(tmp_path / "bundle", [1], 2)) == 2


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1, VOCABULARY], {}, "input: prompt: token ids must be 0 to 96 (got 97)"),
        ([-1], {}, "input: prompt: token ids must be 0 to 96 (got -1)"),
        ([1], {"stop": (97,)}, "input: stop_tokens: token ids must be 0 to 96"),
        ([1], {"capacity": 3}, "input: tokens must have room for 4 new ids (got 3)"),
        ([1], {"min_new_tokens": 5}, "input: min_new_tokens must be at most"),
        ([1] * 1097, {}, "context-length: A prompt of 1097 and 4 new tokens exceed"),
        ([1] * 1101, {}, "context-length: A prompt of 1101"),
        ([1], {"temperature": -1}, "sampling: temperature must be at least 0 (got -1)"),
        ([1], {"temperature": "nan"}, "sampling: temperature must be at least 0 (got nan)"),
        ([1], {"top_k": -1}, "sampling: top_k must be at least 0 (got -1)"),
        ([1], {"top_p": 0}, "sampling: top_p must be above 0 and at most 1 (got 0)"),
        ([1], {"min_p": 1.5}, "sampling: min_p must be from 0 to 1 (got 1.5)"),
        ([1], {"repetition_penalty": 0}, "sampling: repetition_penalty must be above 0"),
        ([1], {"presence_penalty": 3}, "sampling: presence_penalty must be from -2 to 2"),
        ([1], {"frequency_penalty": -3}, "sampling: frequency_penalty must be from -2 to 2"),
        ([1], {"seed": 2**63}, "sampling: seed must be at most 2^63 - 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_request_is_rejected(
    built: Built, tiny: dict[str, Path], prompt: list[int], options: dict[str, Any], message: str
) -> None:
    assert message in failure(built, tiny["unified"], prompt, **options)


def test_model_that_overflows_is_an_error(built: Built, tmp_path: Path) -> None:
    write_bundle(tmp_path / "poisoned", poisoned=7)
    assert "numeric: The model overflows at step 1" in failure(built, tmp_path / "poisoned", [7])


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_every_shortage_of_memory_is_an_error_that_says_so(built: Built, pythonic: Path) -> None:
    """From a limit that only fits the libraries up to one that fits everything."""
    words = [*map(str, arguments(pythonic, random_ids(600), 100))]
    expected, outcomes = built.run("run", *words).stdout, set()
    for limit in range(32 << 20, 256 << 20, 1 << 20):
        done = built.run("run", *words, before=("prlimit", f"--as={limit}"))
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode == 0:
            assert done.stdout == expected
            break
        if "error while loading shared libraries" in last or last.startswith("Fatal glibc error"):
            continue  # too little for the loader or the C library, which say so themselves
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


@pytest.mark.parametrize("name", ["manifest.json", "certificate.json"])
def test_mutated_json_never_reads_outside_of_memory(
    sanitized: Built, tiny: dict[str, Path], name: str
) -> None:
    done = sanitized.run("fuzz_json", tiny["unified"] / name, 5000)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ of 5000\n", done.stdout)


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


# --- JSON ---------------------------------------------------------------------------------------

VALID = [
    "{}",
    " [ ] ",
    "null",
    '"\\u00e9\\ud83d\\ude00\\n\\/"',
    '{"a": [1, -0, 0.5, 1e5, -1.25E-3, 1e-999, 18446744073709551615, 1e300]}',
    "[" * 32 + "]" * 32,
    '"é😀"',
    "0." + "1" * 400,
]
INVALID = {
    "": "a value is missing",
    "{,}": "a key is missing",
    '{"a" 1}': "a colon is missing",
    "[1,]": "a value is not JSON",
    "[1 2]": "an array or object does not end",
    '{"a": 1, "b": 2, "a": 3}': "an object repeats a key",
    "01": "a number has leading zeros",
    "1.": "a number ends with its decimal point",
    "-": "a number has no digits",
    "1e": "a number has an empty exponent",
    "1e999": "a number exceeds the range of a double",
    "+1": "a value is not JSON",
    "NaN": "a value is not JSON",
    "tru": "a value is not JSON",
    '"a': "a string does not end",
    '"\\': "a string does not end",
    '"\t"': "a string contains a control character",
    '"\\u0000"': "a string contains NUL",
    '"\\ud800"': "a surrogate stands alone",
    '"\\udc00"': "a surrogate stands alone",
    '"\\u12"': "an escape is incomplete",
    '"\\u12x4"': "an escape is not hexadecimal",
    '"\\x"': "an escape is unknown",
    "[" * 33 + "]" * 33: "values are nested too deeply",
    "1 2": "text follows the document",
}


@pytest.mark.parametrize("text", VALID)
def test_json_is_read(built: Built, text: str) -> None:
    assert built.run("read_json", text=text).stdout == "valid\n"


@pytest.mark.parametrize(("text", "problem"), INVALID.items())
def test_what_is_not_json_is_rejected(built: Built, text: str, problem: str) -> None:
    assert built.run("read_json", text=text).stdout == f"{problem}\n"


@pytest.mark.parametrize("data", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_that_is_not_utf8_is_rejected(built: Built, data: bytes) -> None:
    done = subprocess.run(
        [built.folder / "read_json"], input=b'"' + data + b'"', capture_output=True
    )
    assert done.stdout == b"the text is not UTF-8\n"


# --- the guide ----------------------------------------------------------------------------------


def test_program_of_the_guide_compiles_and_runs(
    built: Built, pythonic: Path, tmp_path: Path
) -> None:
    text = (REPOSITORY / "docs" / "guides" / "c.md").read_text()
    (program,) = re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)
    source, target = tmp_path / "program.c", tmp_path / "program"
    source.write_text(program)
    library = built.folder / "onnxruntime"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HOST}", f"-Wl,-rpath,{library}"]
    links = [built.folder / "libortolan.a", library / "libonnxruntime.so.1", "-lm"]
    subprocess.run(["cc", *flags, str(source), "-o", str(target), *map(str, links)], check=True)
    (tmp_path / "bundle").symlink_to(pythonic)
    done = subprocess.run([target], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 64


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
