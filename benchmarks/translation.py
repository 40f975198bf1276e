"""Compare translators on this machine: same checkpoint, sentences and number of threads.

    python benchmarks/translation.py models/numerals
    python benchmarks/translation.py models/numerals --sentences 200 --batch 1 32 -r 7

Ortolan in three precisions, CTranslate2 in two, and transformers translate the same held-out
sentences from text to text, greedily and with four beams, one by one and in batches, with the same
tokenizer. All stay loaded and alternate. Prints the speed, the share of outputs that equal those of
transformers, and BLEU; writes the tables to benchmarks/results/.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from sacrebleu import corpus_bleu

import report
import rounds
from catalog import TRANSFORMERS, Peer, ortolan
from ortolan.modeling.training.data import Pair, Pairs, read_data
from ortolan.modeling.training.recipe import read_recipe
from prepare import Checkpoint, all_versions, program, say, trained_checkpoint
from script import add_folders, add_timing, count, exit_status

NEW_TOKENS = 96
"""More than any held-out sentence needs."""

BEAMS = (1, 4)

REFERENCE = "transformers"

CTRANSLATE2 = Peer(
    name="ctranslate2",
    requirements=("ctranslate2==4.8.5", "transformers", "torch", "tokenizers"),
    convert={
        precision: ("{bin}/python", "-m", "workers.to_ctranslate2", "{checkpoint}", "{model}", kind)
        for precision, kind in (("int8", "int8"), ("fp32", "float32"))
    },
    options={"int8": ("compute_type=int8",), "fp32": ("compute_type=float32",)},
    worker="workers.ctranslate",
    versions=("ctranslate2",),
)


def seq2seq(name: str, precision: str, *arguments: str) -> Peer:
    """Ortolan, translating at one precision, exported with further arguments."""
    return replace(ortolan(name, precision, *arguments), worker="workers.ortolan_seq2seq")


PEERS = (
    # Quantized like CTranslate2's int8, in the form that is fastest for whole sources.
    (seq2seq("ortolan-int8", "int8", "--prefill-precision", "int8", "--graphs", "split"), "int8"),
    (seq2seq("ortolan", "fp32"), "fp32"),
    (seq2seq("ortolan-int4", "int4", "--prefill-precision", "int8", "--graphs", "split"), "int4"),
    (replace(CTRANSLATE2, name="ctranslate2-int8"), "int8"),
    (CTRANSLATE2, "fp32"),
    (replace(TRANSFORMERS, worker="workers.marian_eager"), "fp32"),
)
"""Peers and their precisions; the others are compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One peer with one number of beams and one batch size.

    Attributes:
        sentences_per_s: median over the rounds.
        times: speedup of the first peer.
        same: share of outputs that equal those of transformers.
        bleu: BLEU of the outputs.
    """

    peer: str
    beams: int
    batch: int
    sentences_per_s: float
    times: str
    same: float
    bleu: float


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Compare translators.")
    parser.add_argument("checkpoint", type=Path, help="folder of a Marian checkpoint")
    parser.add_argument("--sentences", type=count, default=200)
    parser.add_argument("--batch", type=count, nargs="+", default=[1, 32])
    add_timing(parser, rounds=5)
    add_folders(parser)
    return parser.parse_args(arguments)


def held_out_pairs(recipe: Path) -> Sequence[Pair]:
    """Held-out sentences with numbers that the model never saw.

    Raises:
        RecipeError: the recipe is not for translation.
    """
    return read_data(read_recipe(recipe), recipe.parent, Pairs).held_out["numbers"]


def make_requests(sources: Sequence[str], batches: Iterable[int]) -> list[dict[str, Any]]:
    """One request per number of beams and batch size."""
    return [
        {"sources": sources, "batch": batch, "beams": beams, "new_tokens": NEW_TOKENS}
        for beams in BEAMS
        for batch in batches
    ]


def summarize(turns: Sequence[rounds.Turn], targets: Sequence[str]) -> list[Row]:
    """Rows for one request."""
    peers = list(dict.fromkeys(turn.peer for turn in turns))
    seconds = {(turn.peer, turn.round): turn.answer["seconds"] for turn in turns}
    outputs = {turn.peer: turn.answer["outputs"] for turn in turns}
    numbers = sorted({turn.round for turn in turns})
    rows = []
    for peer in peers:
        ratio = report.Ratio.of(seconds[peer, n] / seconds[peers[0], n] for n in numbers)
        pairs = zip(outputs[peer], outputs[REFERENCE], strict=True)
        rows.append(
            Row(
                peer=peer,
                beams=turns[0].request["beams"],
                batch=turns[0].request["batch"],
                sentences_per_s=median(len(targets) / seconds[peer, n] for n in numbers),
                times="" if peer == peers[0] else str(ratio),
                same=sum(a == b for a, b in pairs) / len(targets),
                bleu=corpus_bleu(outputs[peer], [list(targets)]).score,
            )
        )
    return rows


def markdown(rows: Sequence[Row], setting: Mapping[str, Any]) -> str:
    """The tables as text."""
    machine = setting["machine"]
    first = rows[0].peer
    parts = [
        f"# Translation with {setting['checkpoint']}, {setting['sentences']} sentences, "
        f"{setting['threads']} threads",
        f"{machine['processor']}, {machine['cores']} cores, {setting['rounds']} rounds. "
        f"`times` is the speedup of {first}; `same` is the share of outputs that equal those of "
        f"{REFERENCE}.",
    ]
    for beams, batch in dict.fromkeys((row.beams, row.batch) for row in rows):
        own = [row for row in rows if (row.beams, row.batch) == (beams, batch)]
        parts.append(f"Beams: {beams}. Sentences at once: {batch}.")
        parts.append(
            report.table(
                ["", "sentences/s", f"{first}, times", "same", "BLEU"],
                [
                    [
                        *(row.peer, f"{row.sentences_per_s:.1f}", row.times),
                        *(f"{row.same:.1%}", f"{row.bleu:.2f}"),
                    ]
                    for row in own
                ],
            )
        )
    parts.append(report.with_versions(setting["versions"]))
    return "\n\n".join(parts)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare all peers, run them alternately, print and write the result."""
    checkpoint: Checkpoint = trained_checkpoint(args.checkpoint)
    held_out = held_out_pairs(checkpoint.path / "recipe.toml")[: args.sentences]
    sources, targets = map(list, zip(*held_out, strict=True))
    programs = [
        program(peer, checkpoint, args.work, precision=precision, threads=args.threads)
        for peer, precision in PEERS
    ]
    setting = {
        "checkpoint": checkpoint.name,
        "sentences": len(held_out),
        "threads": args.threads,
        "rounds": args.rounds,
        "versions": all_versions([peer for peer, _ in PEERS]),
        "machine": report.machine(),
    }
    requests = make_requests(sources, args.batch)
    turns, _ = rounds.take_turns(programs, requests, rounds=args.rounds)
    rows: list[Row] = []
    for request in requests:
        own = [turn for turn in turns if turn.request is request]
        rows += summarize(own, targets)
    text = markdown(rows, setting)
    print(text)
    path = args.out / f"translation-{checkpoint.name}-t{args.threads}.json"
    plain = [{name: getattr(row, name) for name in Row.__dataclass_fields__} for row in rows]
    report.write(path, {**setting, "rows": plain}, text)
    say(f"wrote {path} and .md")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
