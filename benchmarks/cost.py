"""The cost of a token by text length, for six kinds of sequence models with a million weights.

    python benchmarks/cost.py
    python benchmarks/cost.py --lengths 64 256 1024 --models lstm,transformer --limit 5

For each kind and length: a training step on one text in PyTorch, the prefill and one decode step of
the exported bundle, and the memory of its state. A point whose predecessor suggests that it would
exceed the limit is left out, like all longer ones. Exponents are slopes in log-log space over the
upper half of the lengths. Prints a table and writes it to benchmarks/results/ with a chart.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import ortolan
import report
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.models.transformer import build
from ortolan.runtime.engine.windows import row_bytes
from prepare import RESULTS, say
from result_charts import COSTS, draw_result
from script import count, exit_status, names

VOCABULARY = 256

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)

STEPS, TURN = 16, 4
"""Decode steps after each prompt, whose median counts, and how many are taken in a row."""

SECONDS = 0.5
"""Repeat a measurement for this long; the median counts."""

MOST_TIMES = 9

WINDOW = 256

NEXT = 2.0
"""Assumed growth of the time from one length to the next, to decide whether to try."""

_COMMON = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
_CELLS = _COMMON | {"model_type": "recurrent", "num_hidden_layers": 3}
_BLOCKS = _COMMON | {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


KINDS: dict[str, dict[str, Any]] = {
    "rnn": _CELLS | {"cell": "rnn", "hidden_size": 384},
    "lstm": _CELLS | {"cell": "lstm", "hidden_size": 200},
    "ntm": _CELLS
    | {
        "cell": "lstm",
        "num_hidden_layers": 1,
        "hidden_size": 304,
        "memory_slots": 128,
        "memory_width": 20,
    },
    "transformer": _BLOCKS,
    "windowed": _BLOCKS | {"model_type": "mistral", "sliding_window": WINDOW},
    "gated-delta": _BLOCKS
    | {
        "model_type": "qwen3_5_text",
        "head_dim": 32,
        "layer_types": ["linear_attention"] * 5,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}
"""Values of a checkpoint's config, by kind of model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One kind at one length; None if it would have exceeded the limit.

    Attributes:
        train_s: seconds per training step.
        prefill_s: seconds to prefill the prompt, in the bundle.
        token_s: seconds per decode step after it.
        state_bytes: size of the bundle's state at that length.
    """

    kind: str
    length: int
    train_s: float | None
    prefill_s: float | None
    token_s: float | None
    state_bytes: int


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=names, default=tuple(KINDS))
    parser.add_argument("--lengths", type=count, nargs="+", default=LENGTHS)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds per point")
    parser.add_argument("--out", type=Path, default=RESULTS / "cost")
    return exit_status(_work, parser.parse_args())


def _work(args: argparse.Namespace) -> None:
    unknown = sorted(set(args.models) - KINDS.keys())
    if unknown:
        raise ValueError(f"--models: unknown {unknown[0]}; choose from {', '.join(KINDS)}.")
    torch.set_num_threads(1)
    lengths, machine = sorted(args.lengths), report.machine()
    points, weights = [], {}
    for kind in args.models:
        torch.manual_seed(0)
        model = build(_config(kind, lengths[-1] + STEPS))
        weights[kind] = sum(parameter.numel() for parameter in model.parameters())
        with tempfile.TemporaryDirectory() as folder:
            points += measure(kind, model, lengths, Path(folder) / "bundle", limit=args.limit)
    document = {
        "machine": machine,
        "threads": 1,
        "limit_s": args.limit,
        "weights": weights,
        "points": [asdict(point) for point in points],
    }
    text = markdown(points, weights, machine, limit=args.limit)
    report.write(args.out.with_suffix(".json"), document, text)
    draw_result(document, args.out.with_suffix(".png"))
    print(text)


def _config(kind: str, context: int) -> ModelConfig:
    values = {**KINDS[kind], "max_position_embeddings": context}
    return config_from_hf(values, ModelConfig)


def measure(
    kind: str, model: nn.Module, lengths: Sequence[int], out: Path, *, limit: float
) -> list[Point]:
    """Measure all lengths of one kind, the bundle first."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, lengths[-1] + STEPS).tolist()
    ortolan.export(model.eval(), out, options=ortolan.ExportOptions(proof="quick"))
    bundle = ortolan.load(out, ortolan.Decoder, threads=1)
    served: dict[int, float] = {}
    for length in lengths:
        say(f"{kind}: a prompt of {length}")
        if max(served.values(), default=0.0) * NEXT > limit:
            break
        served[length] = prefill(bundle, ids[:length])
    stepped = steps(bundle, ids, list(served))
    trained: dict[int, float] = {}
    model.train()
    for length in lengths:
        say(f"{kind}: training on {length}")
        if max(trained.values(), default=0.0) * NEXT > limit:
            break
        trained[length] = train(model, ids[: length + 1])
    fixed = bundle.manifest.state_bytes("replace")
    return [
        Point(
            kind=kind,
            length=length,
            train_s=trained.get(length),
            prefill_s=served.get(length),
            token_s=stepped.get(length),
            state_bytes=fixed + row_bytes(bundle.manifest, length),
        )
        for length in lengths
    ]


def prefill(bundle: ortolan.Decoder, ids: Sequence[int]) -> float:
    """Seconds to prefill a prompt."""

    def prompt() -> None:
        with bundle.session() as session:
            session.append(ids)

    return repeated(prompt)


def steps(bundle: ortolan.Decoder, ids: Sequence[int], lengths: Sequence[int]) -> dict[int, float]:
    """Seconds per decode step after prompts of some lengths, in turn: noise hits all of them."""
    taken: dict[int, list[float]] = {length: [] for length in lengths}
    with ExitStack() as stack:
        sessions = {length: stack.enter_context(bundle.session()) for length in lengths}
        for length, session in sessions.items():
            session.append(ids[:length])
        for start in range(0, STEPS, TURN):
            for length, session in sessions.items():
                for token in ids[length + start : length + start + TURN]:
                    begun_at = time.perf_counter()
                    session.append([token])
                    taken[length].append(time.perf_counter() - begun_at)
    return {length: median(of_length) for length, of_length in taken.items()}


def train(model: nn.Module, ids: Sequence[int]) -> float:
    """Seconds per training step on one text."""
    text = torch.tensor([ids])

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[0, 1:])
        torch.autograd.backward(loss)

    return repeated(step)


def repeated(work: Callable[[], None]) -> float:
    """Median seconds of some work; long work runs once."""
    taken: list[float] = []
    while not taken or (sum(taken) < SECONDS and len(taken) < MOST_TIMES):
        begun_at = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun_at)
    return median(taken)


def exponent(points: Sequence[Point], figure: str) -> float | None:
    """Slope of a figure by length in log-log space, over the upper half of the lengths."""
    values_by_length = [(point.length, getattr(point, figure)) for point in points]
    measured = [(length, value) for length, value in values_by_length if value is not None]
    upper = measured[len(measured) // 2 :]
    if len(upper) < 2:
        return None
    lengths, values = zip(*upper, strict=True)
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def markdown(
    points: Sequence[Point], weights: Mapping[str, int], machine: Mapping[str, Any], *, limit: float
) -> str:
    """The tables, and the conditions of the measurement."""
    lengths = list(dict.fromkeys(point.length for point in points))
    by_kind = {kind: [point for point in points if point.kind == kind] for kind in weights}
    parts = [
        "# What a token costs, by the length of the text\n",
        f"{machine['processor']}, one thread, float32, load average {machine['load_average']:.1f} "
        f"at the start. `-` marks a point that would have taken more than {limit:g} s.",
    ]
    for figure, title in COSTS.items():
        rows = [
            [kind, *(_milliseconds(getattr(point, figure)) for point in of_kind)]
            for kind, of_kind in by_kind.items()
        ]
        parts += [f"\n## {title[0].upper()}{title[1:]}, milliseconds\n"]
        parts += [report.table(["", *map(str, lengths)], rows)]
    rows = [
        [kind, *(f"{point.state_bytes / 1e3:.0f}" for point in of_kind)]
        for kind, of_kind in by_kind.items()
    ]
    parts += ["\n## Memory of the state, kB\n", report.table(["", *map(str, lengths)], rows)]
    rows = [
        [kind, f"{weights[kind] / 1e6:.2f}", *(_slope(of_kind, figure) for figure in COSTS)]
        for kind, of_kind in by_kind.items()
    ]
    header = ["", "M weights", "training", "prompt", "token"]
    parts += [
        "\n## Growth: slopes over the upper half of the lengths\n",
        report.table(header, rows),
    ]
    return "\n".join(parts) + "\n"


def _slope(points: Sequence[Point], figure: str) -> str:
    slope = exponent(points, figure)
    return "-" if slope is None else f"{slope:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g}" if value < 1 else f"{value * 1e3:.0f}"


if __name__ == "__main__":
    sys.exit(main())
