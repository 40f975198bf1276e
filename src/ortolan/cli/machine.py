"""Commands about this machine: `doctor`, and `cache` for the bundles that it keeps."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from ortolan import __version__
from ortolan.cache import CacheError, Entry, cache_folder, entries, remove, remove_abandoned
from ortolan.cli import options
from ortolan.cli.output import aligned, print_json, print_table, size
from ortolan.cuda_setup import examine, installed_version
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

_RIVALS = (("onnxruntime", "onnxruntime-gpu"), ("ortolan", "ortolan-runtime"))
"""Distributions of the same files."""


@click.command()
@options.as_json
def doctor_command(as_json: bool) -> None:
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
    print_table(facts.items())
    print("\nfor a bundle on CUDA")
    absent = {True: "missing, needed by some models", False: "missing"}
    print_table(
        (f"  {part.name}", part.found or f"{absent[part.is_optional]}. {part.remedy}")
        for part in cuda
    )
    print()
    print("\n".join(advice or ["Nothing is missing for the CPU."]))


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
        return {**facts, "gpu": "none found (no nvidia-smi)"}
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    answer = done.stdout.strip() or done.stderr.strip() or f"nvidia-smi exited {done.returncode}"
    return {**facts, "gpu": "; ".join(answer.splitlines())}


def _advice(facts: dict[str, str]) -> list[str]:
    """A line per missing extra: what it is for, and how to install it; then what to remove."""
    absent = {name for name, version in facts.items() if version == "missing"}
    if "onnxruntime-gpu" not in absent:
        absent.discard("onnxruntime")
    wanted = EXTRAS.keys() - ({"export", "train"} if is_runtime_only() else set())
    advice = [
        f"To {purpose}: {pip_install(extra)} (missing {', '.join(missing)})"
        for extra, (purpose, packages) in EXTRAS.items()
        if extra in wanted and (missing := [name for name in packages if name in absent])
    ]
    return advice + [
        f"{one} and {other} are both installed and overwrite each other: uninstall both, then "
        "install one."
        for one, other in _RIVALS
        if installed_version(one) and installed_version(other)
    ]


@click.command()
@click.argument("action", type=click.Choice(["list", "remove"]), default="list")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--all", "is_all", is_flag=True, help="Remove every bundle.")
@options.as_json
def cache_command(action: str, names: tuple[str, ...], is_all: bool, as_json: bool) -> None:
    """List the bundles that Ortolan keeps for the next start, or remove some.

    They were exported from checkpoints or fetched from the Hugging Face Hub, and are made again
    when they are needed. The list has the last used first. The files of the Hub that they were made
    from are in its own cache, which `hf cache` lists.
    """
    found = {entry.key: entry for entry in entries()}
    if action == "list":
        if names or is_all:
            raise click.UsageError("`ortolan cache list` has no arguments but --json.")
        _list(found.values(), as_json)
        return
    if is_all == bool(names):
        raise click.UsageError("Name the bundles to remove, or pass --all.")
    if missing := sorted(set(names) - found.keys()):
        raise CacheError(f"{cache_folder()} has no {missing[0]}. See `ortolan cache list`.")
    chosen = [entry for entry in found.values() if is_all or entry.key in names]
    for entry in chosen:
        remove(entry.key)
    remove_abandoned()
    freed = sum(entry.size for entry in chosen)
    if as_json:
        print_json({"removed": [entry.key for entry in chosen], "bytes": freed})
    else:
        count = "1 bundle" if len(chosen) == 1 else f"{len(chosen)} bundles"
        print(f"removed {count} ({size(freed)}) from {cache_folder()}")


def _list(found: Iterable[Entry], as_json: bool) -> None:
    rows = [(entry, _precision(entry.path)) for entry in found]
    if as_json:
        bundles = [
            {
                "name": entry.key,
                "path": str(entry.path),
                "precision": precision,
                "bytes": entry.size,
                "last_used": round(entry.used),
            }
            for entry, precision in rows
        ]
        print_json({"folder": str(cache_folder()), "bundles": bundles})
        return
    print(f"{cache_folder()} ({size(sum(entry.size for entry, _ in rows))})")
    table = [
        (
            f"  {entry.key}",
            precision or "damaged",
            size(entry.size),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
        )
        for entry, precision in rows
    ]
    print(*aligned(table), sep="\n", end="\n" if table else "")


def _precision(folder: Path) -> str | None:
    """Precision of a bundle; `None` if its manifest cannot be read."""
    from ortolan.runtime.bundle import manifest_file
    from ortolan.runtime.bundle.manifest import NAME
    from ortolan.runtime.errors import ManifestError

    try:
        return manifest_file.decode((folder / NAME).read_bytes()).precision
    except (OSError, ManifestError):
        return None
