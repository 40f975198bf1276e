"""What a token costs, by the length of the text: six kinds of sequence model of a million weights.

    python benchmarks/cost.py
    python benchmarks/cost.py --lengths 64 256 1024 --models lstm,transformer --limit 5

For each kind and length: one training step of one text in PyTorch (forwards and backwards), the
prompt and one more token after it in the exported bundle, and the memory of what is carried. A
point that would take longer than the limit, by the one before it, is left out, and so are the
longer ones. Exponents are the slopes of logarithms over the upper half of the lengths. Prints a
table, and writes it to benchmarks/results/ with a picture.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from chart import draw_lengths
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.models.transformer import build
from prepare import RESULTS, say
from script import count, exit_status, names

VOCABULARY = 256

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)

STEPS = 16
"""Tokens after each prompt, whose median is the cost of one."""

SECONDS = 0.5
"""For which a short point is measured again; the median counts."""

MOST_TIMES = 9

WINDOW = 256

NEXT = 2.0
"""How many times as long the next length takes, at least, when it is decided whether to try."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of model, and what is published of its costs.

    Attributes:
        config: in the words of a checkpoint.
        total: operations of a text of n tokens: width d, window w, a memory of N times M numbers.
        token: of one more token.
        sequential: operations that wait for one another in training.
        path: the most that a signal passes from one token to another.
        powers: of n in `total` and `token`.
    """

    config: Mapping[str, Any]
    total: str
    token: str
    sequential: str
    path: str
    powers: tuple[int, int]


KINDS = {
    "rnn": Kind(
        config=_CELLS | {"cell": "rnn", "hidden_size": 384},
        total="n d²",
        token="d²",
        sequential="n",
        path="n",
        powers=(1, 0),
    ),
    "lstm": Kind(
        config=_CELLS | {"cell": "lstm", "hidden_size": 200},
        total="n d²",
        token="d²",
        sequential="n",
        path="n",
        powers=(1, 0),
    ),
    "ntm": Kind(
        config=_CELLS
        | {
            "cell": "lstm",
            "num_hidden_layers": 1,
            "hidden_size": 304,
            "memory_slots": 128,
            "memory_width": 20,
        },
        total="n (d² + N M)",
        token="d² + N M",
        sequential="n",
        path="n",
        powers=(1, 0),
    ),
    "transformer": Kind(
        config=_BLOCKS,
        total="n² d",
        token="n d",
        sequential="1",
        path="1",
        powers=(2, 1),
    ),
    "windowed": Kind(
        config=_BLOCKS | {"model_type": "mistral", "sliding_window": WINDOW},
        total="n w d",
        token="w d",
        sequential="1",
        path="n / w",
        powers=(1, 0),
    ),
    "gated-delta": Kind(
        config=_BLOCKS
        | {
            "model_type": "qwen3_5_text",
            "head_dim": 32,
            "layer_types": ["linear_attention"] * 5,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
        total="n d²",
        token="d²",
        sequential="n",
        path="n",
        powers=(1, 0),
    ),
}
"""Vaswani et al. 2017, table 1, of layers of recurrence, attention and restricted attention; of a
memory, what Graves et al. 2014 compute at each step. Orders of n are those of long texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One kind at one length; None where it would have taken longer than the limit.

    Attributes:
        train_s: seconds of a training step.
        prefill_s: of the prompt, in the bundle.
        token_s: of one token after it.
        state_bytes: that the bundle carries then.
    """

    kind: str
    length: int
    train_s: float | None
    prefill_s: float | None
    token_s: float | None
    state_bytes: int


FIGURES = {
    "train_s": "a training step",
    "prefill_s": "a prompt",
    "token_s": "one token after it",
}
"""Of a `Point`, in seconds."""


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=names, default=tuple(KINDS))
    parser.add_argument("--lengths", type=count, nargs="+", default=LENGTHS)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a point")
    parser.add_argument("--out", type=Path, default=RESULTS / "cost")
    return exit_status(_work, parser.parse_args())


def _work(args: argparse.Namespace) -> None:
    unknown = sorted(set(args.models) - KINDS.keys())
    if unknown:
        raise ValueError(f"--models: expected some of {', '.join(KINDS)}, got {unknown[0]}.")
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
    report.write(args.out.with_suffix(".json"), document)
    text = markdown(points, weights, machine, limit=args.limit)
    args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    draw_lengths(
        [asdict(point) for point in points],
        args.out.with_suffix(".png"),
        figures=FIGURES | {"state_bytes": "the state"},
        title=f"By tokens of the text; one thread of {machine['processor']}",
    )
    print(text)


def _config(kind: str, context: int) -> ModelConfig:
    values = {**KINDS[kind].config, "max_position_embeddings": context}
    return config_from_hf(values, ModelConfig)


# --- measuring --------------------------------------------------------------------------------


def measure(
    kind: str, model: nn.Module, lengths: Sequence[int], out: Path, *, limit: float
) -> list[Point]:
    """All lengths of one kind, those of the bundle first."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, lengths[-1] + STEPS).tolist()
    ortolan.export(model.eval(), out, options=ortolan.ExportOptions(proof="quick"))
    bundle = ortolan.load(out, ortolan.Decoder, threads=1)
    served: dict[int, tuple[float, float]] = {}
    for length in lengths:
        say(f"{kind}: a prompt of {length}")
        last = max((prefill_s for prefill_s, _ in served.values()), default=0.0)
        if last * NEXT > limit:
            break
        served[length] = serve(bundle, ids, length)
    trained: dict[int, float] = {}
    model.train()
    for length in lengths:
        say(f"{kind}: training on {length}")
        if max(trained.values(), default=0.0) * NEXT > limit:
            break
        trained[length] = train(model, ids[: length + 1])
    fixed, growing = (bundle.manifest.state_bytes(update) for update in ("replace", "append"))
    return [
        Point(
            kind=kind,
            length=length,
            train_s=trained.get(length),
            prefill_s=served[length][0] if length in served else None,
            token_s=served[length][1] if length in served else None,
            state_bytes=fixed + growing * length,
        )
        for length in lengths
    ]


def serve(bundle: ortolan.Decoder, ids: Sequence[int], length: int) -> tuple[float, float]:
    """Seconds of a prompt, and of one token after it."""
    taken: list[float] = []

    def prompt() -> None:
        with bundle.session() as session:
            session.append(ids[:length])

    prefill_s = repeated(prompt)
    with bundle.session() as session:
        session.append(ids[:length])
        for token in ids[length : length + STEPS]:
            begun_at = time.perf_counter()
            session.append([token])
            taken.append(time.perf_counter() - begun_at)
    return prefill_s, median(taken)


def train(model: nn.Module, ids: Sequence[int]) -> float:
    """Seconds of a training step: one text, forwards and backwards."""
    text = torch.tensor([ids])

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[0, 1:])
        torch.autograd.backward(loss)

    return repeated(step)


def repeated(work: Callable[[], None]) -> float:
    """The median of the seconds that some work takes; of long work, those of the only time."""
    taken: list[float] = []
    while not taken or (sum(taken) < SECONDS and len(taken) < MOST_TIMES):
        begun_at = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun_at)
    return median(taken)


# --- telling ----------------------------------------------------------------------------------


def exponent(points: Sequence[Point], figure: str) -> float | None:
    """The slope of a figure by length, both as logarithms, over the upper half of the lengths."""
    found = [(point.length, getattr(point, figure)) for point in points]
    measured = [(length, value) for length, value in found if value is not None]
    upper = measured[len(measured) // 2 :]
    if len(upper) < 2:
        return None
    lengths, values = zip(*upper, strict=True)
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def markdown(
    points: Sequence[Point], weights: Mapping[str, int], machine: Mapping[str, Any], *, limit: float
) -> str:
    """The tables, and what they were measured on."""
    lengths = list(dict.fromkeys(point.length for point in points))
    by_kind = {kind: [point for point in points if point.kind == kind] for kind in weights}
    parts = [
        "# What a token costs, by the length of the text\n",
        f"{machine['processor']}, one thread, float32, load average {machine['load_average']:.1f} "
        f"at the beginning. `-` is a point that would have taken more than {limit:g} s.",
    ]
    for figure, title in FIGURES.items():
        rows = [
            [kind, *(_milliseconds(getattr(point, figure)) for point in found)]
            for kind, found in by_kind.items()
        ]
        parts += [f"\n## {title[0].upper()}{title[1:]}, milliseconds\n"]
        parts += [report.table(["", *map(str, lengths)], rows)]
    rows = [
        [kind, *(f"{point.state_bytes / 1e3:.0f}" for point in found)]
        for kind, found in by_kind.items()
    ]
    parts += ["\n## Memory of the state, kB\n", report.table(["", *map(str, lengths)], rows)]
    parts += [
        f"\nThe windowed transformer attends to the last {WINDOW} tokens; the cache of a bundle "
        "keeps the others as well."
    ]
    parts += ["\n## Growth\n", _growth(by_kind, weights)]
    parts += [
        "\nExponents of the length n are slopes over the upper half of the lengths. What is "
        "published is of long texts: until attention outweighs the products of a layer, a "
        "transformer's total grows as n as well. And it is of kernels that skip what is outside of "
        "a window: those of onnxruntime and of PyTorch on a CPU compute these scores too, and the "
        "windowed transformer costs what the other one does."
    ]
    return "\n".join(parts) + "\n"


def _growth(by_kind: Mapping[str, Sequence[Point]], weights: Mapping[str, int]) -> str:
    rows = []
    for kind, found in by_kind.items():
        of = KINDS[kind]
        slopes = [exponent(found, figure) for figure in FIGURES]
        shown = ["-" if slope is None else f"{slope:.2f}" for slope in slopes]
        total, token = (
            f"{order} ({power})"
            for order, power in zip((of.total, of.token), of.powers, strict=True)
        )
        rows.append(
            [
                kind,
                f"{weights[kind] / 1e6:.2f}",
                *shown[:2],
                total,
                shown[2],
                token,
                of.sequential,
                of.path,
            ]
        )
    header = "M weights,training,prompt,published,token,published,sequential,path"
    return report.table(["", *header.split(",")], rows)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g}" if value < 1 else f"{value * 1e3:.0f}"


if __name__ == "__main__":
    sys.exit(main())
