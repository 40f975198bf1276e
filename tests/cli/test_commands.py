"""The commands on a tiny decoder, in this process where possible."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import REPOSITORY, Run, error_line, run_in_subprocess
from tests.runtime import tiny_encoder

import ortolan as package
from ortolan.cli import COMMANDS
from ortolan.export.output import describe_files, write_manifest
from ortolan.runtime import open_bundle
from ortolan.runtime.verification.certificate import Logits
from ortolan.runtime.verification.certificate_files import read_certificate, write_certificate


@pytest.fixture
def run_json(ortolan: Run, bundle: Path) -> Any:
    def run(prompt: str, *options: str, stdin: bytes = b"") -> Any:
        done = ortolan("run", bundle, prompt, *options, "--json", stdin=stdin)
        return json.loads(done.stdout)

    return run


def test_without_arguments_there_are_commands_to_try(
    ortolan: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\n  ortolan chat MODEL " in ortolan().stdout.decode()
    monkeypatch.setattr("ortolan.cli.is_runtime_only", lambda: True)
    shown = ortolan().stdout.decode()
    assert "\n  ortolan verify BUNDLE" in shown
    assert "export" not in shown


def test_version_names_onnxruntime(ortolan: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = r"ortolan \S+, onnxruntime 1\.\S+, Python 3\.\d+\.\d+\n"
    assert re.fullmatch(pattern, ortolan("--version").stdout.decode())
    monkeypatch.setattr("ortolan.cli.installed_version", lambda _: None)
    assert ", no onnxruntime, " in ortolan("--version").stdout.decode()


@pytest.mark.parametrize("is_subprocess", [False, True])
def test_run_streams_text_and_prints_figures_on_stderr(
    is_subprocess: bool, ortolan: Run, bundle: Path
) -> None:
    run = run_in_subprocess if is_subprocess else ortolan
    done = run("run", bundle, "def read", "-n", "8", "--ignore-eos")
    assert done.returncode == 0
    assert len(done.stdout) > 1
    assert b"8 tokens" in done.stderr


def test_run_reads_a_prompt_from_stdin_and_names_its_device(run_json: Any) -> None:
    typed = run_json("def read", "-n", "8")
    piped = run_json("-", "-n", "8", stdin=b"def read")
    assert typed["tokens"] == piped["tokens"]
    assert piped["prompt"] == "def read"
    assert (typed["device"], typed["device_reason"]) == ("cpu", "the bundle was made for cpu")


def test_verify_passes_with_every_figure(ortolan: Run, bundle: Path) -> None:
    done = ortolan("verify", bundle, "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["verdict"] == "PASS"
    assert set(report["phases"]) == {"prefill", "decode", "chunked", "batch"}


def test_verify_exits_with_1_if_the_reference_differs(
    ortolan: Run, bundle: Path, tmp_path: Path
) -> None:
    wrong = Path(shutil.copytree(bundle, tmp_path / "wrong"))
    opened = open_bundle(wrong)
    certificate = read_certificate(opened)
    logits = certificate.reference
    assert isinstance(logits, Logits)
    shifted = replace(logits, top_logits=logits.top_logits + 0.5)
    write_certificate(wrong, replace(certificate, reference=shifted))
    manifest = msgspec.structs.replace(opened.manifest, files=describe_files(wrong))
    write_manifest(wrong, manifest)

    done = ortolan("verify", wrong)
    assert done.returncode == 1
    assert b"FAIL" in done.stdout


def test_inspect_lists_attention_and_memory(ortolan: Run, bundle: Path) -> None:
    text = ortolan("inspect", bundle).stdout.decode()
    assert "2 x com.microsoft::GroupQueryAttention, fused" in text
    about = json.loads(ortolan("inspect", bundle, "--json", "--context", "50").stdout)
    # two layers, keys and values of 2 heads of 16 channels in float32
    assert about["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    whole = json.loads(ortolan("inspect", bundle, "--json").stdout)
    more = 46 * about["cache_bytes_per_token"]
    assert whole["memory"]["cache"] - about["memory"]["cache"] == more
    scores = 4 * 4 * (96 * 96 - 50 * 50)  # of 4 heads, in float32
    assert whole["memory_bytes"] - about["memory_bytes"] == more + scores


def test_inspect_lists_nodes_without_a_cuda_kernel(ortolan: Run, bundle: Path) -> None:
    text = ortolan("inspect", bundle, "--device", "cuda").stdout.decode()
    assert "decoder: 2 x com.microsoft::GroupQueryAttention in float32" in text
    options = ("--device", "cpu", "--batch", "3", "--json")
    about = json.loads(ortolan("inspect", bundle, *options).stdout)
    assert about["placement"]["misplaced"] == []
    assert about["memory"]["cache"] == 3 * 96 * about["cache_bytes_per_token"]


def test_inspect_of_a_checkpoint_describes_its_export(
    ortolan: Run, checkpoint: Path, tmp_path: Path
) -> None:
    text = ortolan("inspect", checkpoint).stdout.decode()
    assert "decoder, by its family" in text
    assert "2 blocks, 64 wide" in text
    assert "missing      calibration.txt" in text
    odd = Path(shutil.copytree(checkpoint, tmp_path / "odd"))
    values = json.loads((odd / "config.json").read_text()) | {"strange": 1}
    (odd / "config.json").write_text(json.dumps(values))
    assert "--accept-unknown strange" in ortolan("inspect", odd).stdout.decode()
    about = json.loads(ortolan("inspect", odd, "--json").stdout)
    assert about["unknown_keys"] == ["strange"]
    assert about["precisions"]["fp32"]["bundle_bytes"] > 4 * about["parameters"]


@pytest.mark.slow
def test_a_bfloat16_bundle_is_exported_but_not_run_on_the_cpu(
    ortolan: Run, checkpoint: Path, tmp_path: Path
) -> None:
    out, options = tmp_path / "bundle", ("--device", "cuda", "--precision", "bf16")
    done = ortolan("export", checkpoint, out, *options)
    assert "not verified: the CPU has no kernels for bfloat16" in done.stdout.decode()
    text = ortolan("inspect", out, "--device", "cuda").stdout.decode()
    assert "run `ortolan verify` on the device" in text
    assert "none without a kernel" in text
    assert "memory of cuda" in text
    for command in ("run", "verify"):
        assert "device 'auto'" in error_line(command, out)
    assert "cuda" in error_line("export", checkpoint, tmp_path / "b", *options[:2])


def test_doctor_names_packages_and_every_part_of_cuda(ortolan: Run) -> None:
    text = ortolan("doctor").stdout.decode()
    report = json.loads(ortolan("doctor", "--json").stdout)
    assert "CPUExecutionProvider" in report["facts"]["providers"]
    assert report["facts"]["python"].split()[1] == f"({sys.executable})"
    assert report["cuda"][0]["name"] == "NVIDIA driver"
    for part in report["cuda"]:
        assert f"  {part['name']} " in text
        assert (part["found"] or part["remedy"]) in text


def test_pack_keeps_the_tokens_and_reports_what_it_wrote(
    ortolan: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    words = ("run", copy, "def read", "-n", "8", "--ignore-eos", "--json")
    expected = json.loads(ortolan(*words).stdout)["tokens"]
    done = ortolan("pack", copy, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    figures = {"bytes", "weights", "share", "load_before_s", "load_after_s"}
    assert report.keys() == {"folder", *figures}
    assert Path(report["folder"]).parent == copy
    assert (tmp_path / "state" / "ortolan" / "seal.key").exists()
    done = ortolan(*words)
    assert (json.loads(done.stdout)["tokens"], done.stderr) == (expected, b"")
    assert ortolan("verify", copy).returncode == 0

    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "other"))
    done = run_in_subprocess(*words)  # pytest would capture the log line here
    assert json.loads(done.stdout)["tokens"] == expected
    (line,) = done.stderr.decode().splitlines()
    assert "packed weights" in line


# --- encoders ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    tiny_encoder.write_bundle(folder / "images", image=tiny_encoder.IMAGE)
    return folder


def test_classify_prints_the_likeliest_label_next_to_each_image_file(
    ortolan: Run, encoders: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"{name}.png" for name in ("red", "blue")]
    for file in files:
        Image.new("RGB", (20, 10), file.stem).save(file)
    model = package.load(encoders / "images", package.Encoder, threads=1)
    expected = [[one.label, f"{one.probability:.1%}"] for one in model.classify(files)]
    lines = ortolan("classify", encoders / "images", *files).stdout.decode().splitlines()
    named = zip(expected, files, strict=True)
    assert [line.split() for line in lines] == [[*row, str(file)] for row, file in named]


def test_attention_draws_the_chosen_maps(ortolan: Run, encoders: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.png"
    done = ortolan("attention", encoders / "labels", "a b c", "-o", path, "--heads", "1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{path}  1 maps\n"
    with Image.open(path) as picture:
        assert len(np.unique(np.asarray(picture))) > 20


def test_inspect_prints_kind_inputs_outputs_and_maps(ortolan: Run, encoders: Path) -> None:
    text = ortolan("inspect", encoders / "labels").stdout.decode()
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    assert "tiny encoder, fp32" in text
    assert f"texts of at most {tiny_encoder.MAX_TOKENS} tokens" in rows["input"]
    assert "3 labels and their probabilities: no, perhaps, yes" in rows["output"]
    assert "1: encoder.0.self" in rows["maps"]
    assert "attention: 1 x in plain operators" in text
    about = json.loads(ortolan("inspect", encoders / "images", "--json").stdout)
    assert about["takes"] == "images, RGB, of 4 by 6 pixels"
    assert about["labels"] == list(tiny_encoder.LABELS)
    assert about["cache_bytes_per_token"] == 0


# --- help -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_at_most_ten_options_and_help_all_the_rest(ortolan: Run, name: str) -> None:
    done = ortolan(name, "--help")
    assert done.returncode == 0
    text = done.stdout.decode()
    assert text.startswith(f"Usage: ortolan {name}")
    options = [line for line in text.splitlines() if line.startswith("  -")]
    assert len([line for line in options if "--help" not in line]) <= 10
    if "\n  --help-all" in text:
        assert text.splitlines()[-1] == f"Run `ortolan {name} --help-all` for all options."
        everything = ortolan(name, "--help-all").stdout.decode()
        assert "\nOptions:\n" in everything
        assert all(line in everything for line in options if "[" not in line)
        assert everything.count("\n  --") > text.count("\n  --")


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys, contextlib\n"
        "sys.argv = ['ortolan', *sys.argv[1:], '--help']\n"
        "from ortolan.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "sys.stderr.write(str({'torch', 'onnx', 'numpy', 'onnxruntime'} & set(sys.modules)))\n"
    )
    for arguments, line in ([], "    ortolan export checkpoint/ bundle/"), (["export"], "Options:"):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": "src"},
            cwd=REPOSITORY,
            check=True,
        )
        assert f"\n{line}\n" in done.stdout
        assert done.stderr == "set()"
