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

EXTRAS = {
    "chat": ("jinja2", "onnxruntime"),
    "cpu": ("onnxruntime",),
    "export": ("torch", "onnx", "onnx-ir", "onnxscript", "safetensors"),
    "plot": ("matplotlib", "onnxruntime"),
    "train": ("torch", "safetensors", "matplotlib"),
    "vision": ("onnxruntime", "pillow"),
}
"""Packages of each extra."""

BASE = ("numpy", "tokenizers", "msgspec", "protobuf", "click", "tqdm")


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """Show what this machine has, what is missing, and how to get it."""
    facts = {"ortolan": __version__, **_machine(), **_packages(), **_devices()}
    advice, cuda = _advice(facts), tuple(examine())
    if as_json:
        print_json({"facts": facts, "cuda": [asdict(part) for part in cuda], "advice": advice})
        return
    print_table(list(facts.items()))
    print("\nfor a bundle on a GPU")
    print_table(_cuda_rows(cuda))
    print()
    for line in advice or ["Nothing is missing to run on the CPU."]:
        print(line)


def _machine() -> dict[str, str]:
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "memory": _memory(),
    }


def _cores() -> str:
    try:
        from ortolan.runtime.engine.threads import physical_cores
    except ImportError:  # the advice below says how to get the runtime
        return f"{os.cpu_count()} logical"
    return f"{physical_cores()} physical for this process, {os.cpu_count()} logical"


def _processor() -> str:
    """The processor's name and the instructions that decide the speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    flags = values.get("flags", values.get("Features", "")).split()
    known = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "sve")
    return f"{values.get('model name', 'unknown')} ({' '.join(f for f in known if f in flags)})"


def _memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{size(total)}, {size(free)} free"


def _packages() -> dict[str, str]:
    names = dict.fromkeys((*BASE, *(name for names in EXTRAS.values() for name in names)))
    return {name: installed_version(name) or "missing" for name in names}


def _devices() -> dict[str, str]:
    """What onnxruntime can run on, and what the driver says of a GPU."""
    facts = {"onnxruntime-gpu": installed_version("onnxruntime-gpu") or "missing"}
    try:
        from ortolan.runtime.engine.ort_session import available_providers

        facts["providers"] = ", ".join(available_providers())
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
    """What of CUDA is there, and how to get the rest, in the order in which to get it."""
    rows = []
    for part in parts:
        absent = "missing, needed by some models" if part.is_optional else "missing"
        rows.append((f"  {part.name}", part.found or f"{absent}. {part.remedy}"))
    return [*rows, ("  ortolan", f"{__version__} computes on the CPU only")]


def _advice(facts: dict[str, str]) -> list[str]:
    """One line for each thing that is missing: what cannot be done, and how to get it."""
    purposes = {
        "chat": "hold conversations",
        "cpu": "run bundles",
        "export": "export checkpoints",
        "plot": "draw attention",
        "train": "train recipes",
        "vision": "read image files",
    }
    advice = []
    for extra, packages in EXTRAS.items():
        present = facts["onnxruntime-gpu"] != "missing"
        missing = [
            name
            for name in packages
            if facts[name] == "missing" and not (name == "onnxruntime" and present)
        ]
        if missing:
            advice.append(
                f'To {purposes[extra]}: pip install "ortolan[{extra}]" '
                f"(missing {', '.join(missing)})"
            )
    if facts["onnxruntime"] != "missing" and facts["onnxruntime-gpu"] != "missing":
        advice.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: "
            "pip uninstall both, then install one."
        )
    return advice
