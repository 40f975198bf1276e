"""Savings by windowed states on a random model of Gemma 3's shape: memory, a step, a prompt.

    python benchmarks/windows.py build/windows          # exports the model there first, once
    python benchmarks/windows.py build/windows-split --graphs split --threads 2
    python benchmarks/windows.py build/windows-full --layers 26 --vocabulary 262144 --tokens 16384

Compares two ways to run one bundle: rows that hold their windows, and rows that hold all tokens,
with `window_starts` 0. Rounds alternate; the medians of ratios are printed. Six layers and 60,000
tokens of vocabulary keep the proportions of Gemma 3 1B, whose 26 layers have 262,144.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import ortolan
from ortolan import Int4
from ortolan.export.options import ExportOptions, Graphs
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.models.transformer import build
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner

STEPS = 16
"""Decode steps of a round; their median counts."""


def export(folder: Path, *, layers: int, vocabulary: int, context: int, graphs: Graphs) -> None:
    """Export a random model of Gemma 3 1B's widths in int4."""
    config = {
        "model_type": "gemma3_text",
        "vocab_size": vocabulary,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "max_position_embeddings": context,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    module = build(config_from_hf(config)).eval()
    options = ExportOptions(graphs=graphs, proof="quick", allow_poor=True)
    ortolan.export(module, folder, precision=Int4(method="rtn"), options=options)


def runner_of(engine: Engine, *, windowed: bool) -> Runner:
    """A runner of one row, that holds its windows or all tokens."""
    if windowed:
        return Runner(engine, engine.slots())
    with patch("ortolan.runtime.engine.slots.window_of", return_value=None):
        return Runner(engine, engine.slots())


def step_seconds(runner: Runner, clock: Callable[[], float]) -> tuple[float, NDArray[np.float32]]:
    """Median seconds of a step after the present tokens, which are kept, and its last logits."""
    length, taken = runner.slots.lengths[0], []
    runner.select([0])
    for number in range(STEPS):
        begun_at = clock()
        runner.step([5 + number])
        taken.append(clock() - begun_at)
    runner.slots.rewind(length)
    return median(taken), runner.logits_BV[0].copy()


def measure(engine: Engine, ids: list[int], rounds: int, clock: Callable[[], float]) -> None:
    """Print one row per quantity."""
    names = ("windows", "all tokens")
    figures: dict[str, list[tuple[float, float]]] = {"prompt, s": [], "step, ms": []}
    difference, runners = 0.0, [runner_of(engine, windowed=windowed) for windowed in (True, False)]
    for _ in range(rounds):
        prompts, logits = [], []
        for runner in runners:
            runner.slots.rewind(0)
            begun_at = clock()
            logits.append(runner.prefill(0, ids))
            prompts.append(clock() - begun_at)
        difference = max(difference, relative(*logits))
        figures["prompt, s"].append((prompts[0], prompts[1]))
        for _ in range(3):
            steps = [step_seconds(runner, clock) for runner in runners]
            difference = max(difference, relative(steps[0][1], steps[1][1]))
            figures["step, ms"].append((1e3 * steps[0][0], 1e3 * steps[1][0]))
    print(f"| {len(ids)} tokens | {' | '.join(names)} | ratio |\n|---|---:|---:|---:|")
    held = [state_bytes(runner) / 1e6 for runner in runners]
    print(f"| states, MB | {held[0]:.1f} | {held[1]:.1f} | {held[0] / held[1]:.3f} |")
    for name, pairs in figures.items():
        one, other = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(a / b for a, b in pairs)
        print(f"| {name} | {one:.2f} | {other:.2f} | {ratio:.3f} |")
    print(f"\nLargest difference of a logit, relative to the largest: {difference:.1e}")


def relative(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def state_bytes(runner: Runner) -> int:
    """Size of the states of the row."""
    bound: Any = runner.slots.bound(slice(0, 1))
    return sum(read.nbytes for _, read, _ in bound)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=60_000)
    parser.add_argument("--graphs", choices=get_args(Graphs), default="unified")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if not args.bundle.exists():
        export(
            args.bundle,
            layers=args.layers,
            vocabulary=args.vocabulary,
            context=args.tokens + 1024,
            graphs=args.graphs,
        )
    engine = Engine(open_bundle(args.bundle), threads=args.threads)
    ids = np.random.default_rng(0).integers(3, args.vocabulary, args.tokens).tolist()
    measure(engine, ids, args.rounds, time.thread_time if args.threads == 1 else time.perf_counter)


if __name__ == "__main__":
    main()
