import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.end_to_end.conftest import Run

from ortolan.cli import COMMANDS
from ortolan.export.output import describe_files, write_manifest
from ortolan.runtime import open_bundle
from ortolan.runtime.machine import bandwidth
from ortolan.runtime.verification.certificate import Logits
from ortolan.runtime.verification.certificate_files import read_certificate, write_certificate


def fails_in_one_line(ortolan: Run, *arguments: str | Path, stdin: bytes = b"") -> str:
    """Run a command that must fail, and give its only line."""
    done = ortolan(*arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ortolan: ")
    return lines[0]


@pytest.mark.parametrize("place", ["ortolan", "ortolan_apart"])
def test_run_streams_the_text_and_says_figures_on_stderr(
    place: str, bundle: Path, request: pytest.FixtureRequest
) -> None:
    ortolan: Run = request.getfixturevalue(place)
    done = ortolan("run", bundle, "def read", "-n", "8", "--ignore-eos")
    assert done.returncode == 0
    assert len(done.stdout) > 1
    assert b"8 tokens" in done.stderr


def test_run_reads_the_prompt_from_stdin(ortolan: Run, bundle: Path) -> None:
    given = json.loads(ortolan("run", bundle, "def read", "-n", "8", "--json").stdout)
    piped = json.loads(ortolan("run", bundle, "-", "-n", "8", "--json", stdin=b"def read").stdout)
    assert given["tokens"] == piped["tokens"]
    assert piped["prompt"] == "def read"


def test_run_with_a_seed_is_repeatable_and_another_seed_differs(ortolan: Run, bundle: Path) -> None:
    def tokens(seed: int) -> list[int]:
        options = ("-n", "16", "--temperature", "50", "--seed", str(seed), "--json", "--ignore-eos")
        ids: list[int] = json.loads(ortolan("run", bundle, "def", *options).stdout)["tokens"]
        return ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_run_ends_before_a_stop_text(ortolan: Run, bundle: Path) -> None:
    options = ("-n", "16", "--json", "--ignore-eos")
    whole = json.loads(ortolan("run", bundle, "def", *options).stdout)["text"]
    middle = whole[len(whole) // 2]
    cut = json.loads(ortolan("run", bundle, "def", *options, "--stop", middle).stdout)
    assert cut["text"] == whole[: whole.index(middle)]
    assert cut["finish_reason"] == "stop"


def test_verify_passes_and_gives_every_figure(ortolan: Run, bundle: Path) -> None:
    done = ortolan("verify", bundle, "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["verdict"] == "PASS"
    assert set(report["phases"]) == {"prefill", "decode", "chunked", "batch"}


def test_verify_of_a_wrong_reference_exits_with_1(
    ortolan: Run, bundle: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(bundle, wrong)
    opened = open_bundle(wrong)
    reference = read_certificate(opened)
    kept = reference.reference
    assert isinstance(kept, Logits)
    louder = replace(kept, top_logits=kept.top_logits + 0.5)
    write_certificate(wrong, replace(reference, reference=louder))
    manifest = msgspec.structs.replace(opened.manifest, files=describe_files(wrong))
    write_manifest(wrong, manifest)

    done = ortolan("verify", wrong)
    assert done.returncode == 1
    assert b"FAIL" in done.stdout


def test_inspect_lists_attention_and_memory(ortolan: Run, bundle: Path) -> None:
    text = ortolan("inspect", bundle).stdout.decode()
    assert "2 x com.microsoft::GroupQueryAttention, fused" in text
    about = json.loads(ortolan("inspect", bundle, "--json", "--context", "50").stdout)
    # Two layers, keys and values of 2 heads of 16 channels in float32.
    assert about["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    whole = json.loads(ortolan("inspect", bundle, "--json").stdout)
    more = 46 * about["cache_bytes_per_token"]
    assert whole["memory"]["cache"] - about["memory"]["cache"] == more
    scores = 4 * 4 * (96 * 96 - 50 * 50)  # of 4 heads, in float32
    assert whole["memory_bytes"] - about["memory_bytes"] == more + scores


def test_inspect_names_the_nodes_that_cuda_has_no_kernel_for(ortolan: Run, bundle: Path) -> None:
    text = ortolan("inspect", bundle, "--device", "cuda").stdout.decode()
    assert "decoder: 2 x com.microsoft::GroupQueryAttention in float32" in text
    options = ("--device", "cpu", "--batch", "3", "--json")
    about = json.loads(ortolan("inspect", bundle, *options).stdout)
    assert about["placement"]["misplaced"] == []
    assert about["memory"]["cache"] == 3 * 96 * about["cache_bytes_per_token"]


def test_inspect_of_a_checkpoint_says_what_an_export_would_make(
    ortolan: Run, checkpoint: Path, tmp_path: Path
) -> None:
    text = ortolan("inspect", checkpoint).stdout.decode()
    assert "decoder, by its family" in text
    assert "2 blocks, 64 wide" in text
    assert "missing      calibration.txt" in text
    odd = Path(shutil.copytree(checkpoint, tmp_path / "odd"))
    values = json.loads((odd / "config.json").read_text()) | {"strange": 1}
    (odd / "config.json").write_text(json.dumps(values))
    assert "export with --accept-unknown strange" in ortolan("inspect", odd).stdout.decode()
    about = json.loads(ortolan("inspect", odd, "--json").stdout)
    assert about["unknown_keys"] == ["strange"]
    assert about["precisions"]["fp32"]["bundle_bytes"] > 4 * about["parameters"]


def test_inspect_of_what_is_neither_fails_in_one_line(
    ortolan: Run, checkpoint: Path, tmp_path: Path
) -> None:
    assert "config.json" in fails_in_one_line(ortolan, "inspect", tmp_path)
    assert "nowhere" in fails_in_one_line(ortolan, "inspect", tmp_path / "nowhere")
    line = fails_in_one_line(ortolan, "inspect", checkpoint, "--batch", "2")
    assert "expected a bundle with --batch" in line


def test_inspect_of_a_bundle_takes_no_way(ortolan: Run, bundle: Path) -> None:
    line = fails_in_one_line(ortolan, "inspect", bundle, "--via", "family")
    assert "expected a checkpoint with --via" in line


def test_bundle_in_bfloat16_is_made_here_and_not_run(
    ortolan: Run, checkpoint: Path, tmp_path: Path
) -> None:
    out, options = tmp_path / "bundle", ("--device", "cuda", "--precision", "bf16")
    done = ortolan("export", checkpoint, out, *options)
    assert "not verified: the CPU has no kernels for bfloat16" in done.stdout.decode()
    text = ortolan("inspect", out, "--device", "cuda").stdout.decode()
    assert "run `ortolan verify` on the device" in text
    assert "none without one" in text
    assert "memory of cuda" in text
    for command in ("run", "verify"):
        assert "device 'auto': expected" in fails_in_one_line(ortolan, command, out)
    refused = fails_in_one_line(ortolan, "export", checkpoint, tmp_path / "b", *options[:2])
    assert "for the device cuda" in refused


@pytest.mark.parametrize("command", ["run", "verify", "bench"])
def test_cuda_fails_in_one_line_that_names_the_device(
    ortolan: Run, bundle: Path, command: str
) -> None:
    assert "device 'cuda': expected" in fails_in_one_line(
        ortolan, command, bundle, "--device", "cuda"
    )


def test_run_says_which_device_it_took_and_why(ortolan: Run, bundle: Path) -> None:
    done = json.loads(ortolan("run", bundle, "def", "-n", "1", "--json").stdout)
    assert (done["device"], done["device_reason"]) == ("cpu", "the bundle was made for the CPU")


def test_bench_measures_prompts_and_generation(
    ortolan: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a small array, of whatever cache: the figure itself is tests/runtime/machine/test_bandwidth.py
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", bandwidth.MIN_BUFFER_BYTES)
    monkeypatch.setattr(bandwidth, "CACHES", 0)
    done = ortolan("bench", bundle, "-p", "16", "-n", "8", "-r", "2")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.decode().splitlines() if line]
    assert names[:3] == ["test", "pp16", "tg8"]


def test_bench_beyond_the_context_fails_with_what_fits(ortolan: Run, bundle: Path) -> None:
    assert "-p 96 -n 96" in fails_in_one_line(ortolan, "bench", bundle)


def test_doctor_names_what_is_installed(ortolan: Run) -> None:
    facts = json.loads(ortolan("doctor", "--json").stdout)["facts"]
    assert "CPUExecutionProvider" in facts["providers"]
    assert facts["python"].split()[1] == f"({sys.executable})"


def test_doctor_says_of_each_part_of_cuda_what_is_there_or_what_to_do(ortolan: Run) -> None:
    text = ortolan("doctor").stdout.decode()
    parts = json.loads(ortolan("doctor", "--json").stdout)["cuda"]
    assert parts[0]["name"] == "NVIDIA driver"
    for part in parts:
        assert f"  {part['name']} " in text
        assert (part["found"] or part["remedy"]) in text


def test_export_of_a_taken_place_needs_force(ortolan: Run, checkpoint: Path, bundle: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in bundle.iterdir()}
    assert "--force" in fails_in_one_line(ortolan, "export", checkpoint, bundle)
    assert before == {path.name: path.stat().st_mtime_ns for path in bundle.iterdir()}


def test_export_of_nothing_is_refused(ortolan: Run, tmp_path: Path) -> None:
    line = fails_in_one_line(ortolan, "export", tmp_path / "nowhere", tmp_path / "out")
    assert "nowhere" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "warm"), "--temperature"),
        (("--device", "cuda"), "cuda"),
        (("--device", "toaster"), "toaster"),
        (("-n", "0"), "max_new_tokens"),
        (("--stop", ""), "stop"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_run_with_a_wrong_option_fails_in_one_line(
    ortolan: Run, bundle: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in fails_in_one_line(ortolan, "run", bundle, "def", *arguments)


def test_run_of_a_missing_bundle_fails_in_one_line(ortolan: Run, tmp_path: Path) -> None:
    assert "nowhere" in fails_in_one_line(ortolan, "run", tmp_path / "nowhere", "def")


def test_run_of_a_torn_manifest_fails_in_one_line(
    ortolan: Run, bundle: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(bundle, torn)
    manifest = (torn / "manifest.json").read_bytes()
    (torn / "manifest.json").write_bytes(manifest[: len(manifest) // 2])
    assert "manifest.json" in fails_in_one_line(ortolan, "run", torn, "def")


def test_prompt_longer_than_the_context_fails_with_the_figures(ortolan: Run, bundle: Path) -> None:
    line = fails_in_one_line(ortolan, "run", bundle, "def read(path):\n" * 200)
    assert "96" in line


def test_stdin_that_is_not_utf8_fails_with_the_place(ortolan: Run, bundle: Path) -> None:
    line = fails_in_one_line(ortolan, "run", bundle, "-", stdin=b"def \xff\xfe")
    assert "0xff at 4" in line


def test_debug_shows_the_traceback(ortolan_apart: Run, tmp_path: Path) -> None:
    done = ortolan_apart("run", tmp_path / "nowhere", "def", "--debug")
    assert done.returncode != 0
    assert b"Traceback" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(ortolan: Run, name: str) -> None:
    done = ortolan(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: ortolan " + name.encode())


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys, contextlib\n"
        "sys.argv = ['ortolan', '--help']\n"
        "from ortolan.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "sys.stderr.write(str({'torch', 'onnx', 'numpy', 'onnxruntime'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert "\n    ortolan export checkpoint/ bundle/\n" in done.stdout
    assert done.stderr == "set()"
