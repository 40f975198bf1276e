"""Command line of the fuzzers."""

import argparse
import json
import secrets
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def parser(documentation: str | None, *, count: int) -> argparse.ArgumentParser:
    """Return a parser with a seed, a count and the folder of the bundles."""
    parser = argparse.ArgumentParser(description=(documentation or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="random by default")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--bundles", type=Path, default=ROOT / "build" / "hostile")
    return parser


def pick_seed(seed: int | None) -> int:
    """Return the seed, a new one by default, and print it."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    return seed


def add_finding(findings: list[dict[str, Any]], **finding: Any) -> None:
    """Append a finding and print it."""
    findings.append(finding)
    print(json.dumps(finding), flush=True)
