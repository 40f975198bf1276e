"""`ortolan doctor`."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from ortolan import __version__
from ortolan.cli import options
from ortolan.cli.output import print_json, print_table, size
from ortolan.cuda_setup import Part, examine, installed_version
from ortolan.distribution import is_runtime_only, pip_install

EXTRAS = {
    "audio": ("read sound files", ("onnxruntime", "soundfile", "soxr")),
    "chat": ("chat", ("jinja2", "onnxruntime")),
    "cpu": ("run bundles", ("onnxruntime",)),
    "export": ("export checkpoints", ("torch", "onnx", "onnx-ir", "onnxscript", "safetensors")),
    "grammar": ("constrain texts", ("llguidance", "onnxruntime")),
    "hub": ("load models by name", ("huggingface_hub",)),
    "plot": ("draw attention", ("matplotlib", "onnxruntime")),
    "serve": ("serve over HTTP", ("jinja2", "onnxruntime", "starlette", "uvicorn")),
    "train": ("train recipes", ("torch", "safetensors", "matplotlib", "tqdm")),
    "webgpu": ("run bundles on any GPU", ("onnxruntime", "onnxruntime-ep-webgpu")),
    "vision": ("read image files", ("onnxruntime", "pillow")),
}
"""Extras: what each is for, and its packages."""

BASE = ("numpy", "tokenizers", "msgspec", "protobuf", "click")


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """Show what this machine has, and how to get what is missing."""
    packages = dict.fromkeys((*BASE, *(name for _, names in EXTRAS.values() for name in names)))
    facts = {
        "ortolan": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "memory": _memory(),
        **{name: installed_version(name) or "missing" for name in packages},
        **_devices(),
    }
    advice, cuda = _advice(facts), tuple(examine())
    if as_json:
        print_json({"facts": facts, "cuda": [asdict(part) for part in cuda], "advice": advice})
        return
    print_table(list(facts.items()))
    print("\nfor a bundle on CUDA")
    print_table(_cuda_rows(cuda))
    print()
    for line in advice or ["Nothing is missing for the CPU."]:
        print(line)


def _cores() -> str:
    try:
        from ortolan.runtime.engine.threads import physical_cores
    except ImportError:  # the advice says how to install the runtime
        return f"{os.cpu_count()} logical"
    return f"{physical_cores()} physical for this process, {os.cpu_count()} logical"


def _processor() -> str:
    """Name of the processor, and the instruction sets that matter for speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    flags = values.get("flags", values.get("Features", "")).split()
    fast = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "sve")
    return f"{values.get('model name', 'unknown')} ({' '.join(f for f in fast if f in flags)})"


def _memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{size(total)}, {size(free)} free"


def _devices() -> dict[str, str]:
    """Execution providers of onnxruntime, which devices start, and GPUs that the driver reports."""
    facts = {"onnxruntime-gpu": installed_version("onnxruntime-gpu") or "missing"}
    try:
        from ortolan.runtime.engine.providers import PROVIDERS, available_providers, obstacle

        facts["providers"] = ", ".join(available_providers())
        for device in PROVIDERS:
            facts[f"device {device}"] = obstacle(device) or "works"
    except ImportError as error:
        facts["providers"] = f"none: {' '.join(str(error).split())}"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        facts["gpu"] = "none found (no nvidia-smi)"
        return facts
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    answer = done.stdout.strip() or done.stderr.strip() or f"nvidia-smi exited {done.returncode}"
    facts["gpu"] = "; ".join(answer.splitlines())
    return facts


def _cuda_rows(parts: Iterable[Part]) -> list[tuple[str, str]]:
    """The parts of CUDA, and how to get the missing ones, in the order to install them."""
    rows = []
    for part in parts:
        absent = "missing, needed by some models" if part.is_optional else "missing"
        rows.append((f"  {part.name}", part.found or f"{absent}. {part.remedy}"))
    return rows


def _advice(facts: dict[str, str]) -> list[str]:
    """One line per missing extra: what it is for, and how to install it."""
    absent = {name for name, version in facts.items() if version == "missing"}
    has_both = not absent & {"onnxruntime", "onnxruntime-gpu"}
    if "onnxruntime-gpu" not in absent:
        absent.discard("onnxruntime")
    advice = []
    for extra, (purpose, packages) in EXTRAS.items():
        if is_runtime_only() and extra in ("export", "train"):
            continue
        if missing := [name for name in packages if name in absent]:
            names = ", ".join(missing)
            advice.append(f"To {purpose}: {pip_install(extra)} (missing {names})")
    if has_both:
        advice.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: "
            "uninstall both, then install one."
        )
    if installed_version("ortolan") and installed_version("ortolan-runtime"):
        advice.append(
            "ortolan and ortolan-runtime are both installed and overwrite each other: uninstall "
            "both, then install one."
        )
    return advice
