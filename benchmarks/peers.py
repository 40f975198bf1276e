"""Ortolan and its peers on this machine: same checkpoint, same prompt, same number of threads.

    python benchmarks/peers.py --shape tiny
    python benchmarks/peers.py --checkpoint path/to/model -p 512 -n 128 -r 7

Run it with the interpreter in which Ortolan is installed. Each peer gets an environment of its
own below .venv-peers/ and converts the checkpoint with its own tool; then all stay loaded and
take turns. Prints a table and writes benchmarks/results/NAME.json.

A new peer is one more entry of `PEERS` and one more worker below workers/. How a measurement is
made stands in rounds.py, what is made of it in report.py.
"""

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import report
import rounds
from make_checkpoint import SHAPES, make_checkpoint

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
ENVIRONMENTS = ROOT / ".venv-peers"
RESULTS = ROOT / "benchmarks" / "results"

PRECISIONS = ("fp32",)  # those that every peer can write
FIRST_ORDINARY_ID = 3  # below stand special tokens, which some peers treat apart
BUSY = 0.5  # load average above which times say little


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program that generates tokens, and how to get it.

    Attributes:
        name: as it stands in tables and folder names.
        requirements: what pip installs for it; none means the environment of this script.
            constraints.txt pins whatever is not pinned here.
        convert: the command that turns {checkpoint} into {model} at {precision}. {bin} is the
            folder with the programs of its environment, {cache} one for scratch files.
        worker: the module that runs it.
        versions: the packages whose versions belong to a result.
        reuse: whether a model converted earlier still holds; not for code that changes here.
    """

    name: str
    requirements: tuple[str, ...] = ()
    convert: tuple[str, ...]
    worker: str
    versions: tuple[str, ...]
    reuse: bool = True


ORTOLAN = Peer(
    name="ortolan",
    convert=("{bin}/ortolan", "export", "{checkpoint}", "{model}", "--precision", "{precision}"),
    worker="workers.ortolan_engine",
    versions=("ortolan", "onnxruntime", "numpy"),
    reuse=False,
)

GENAI = Peer(
    name="onnxruntime-genai",
    requirements=(
        "onnxruntime-genai==0.18.0",
        # Its model builder needs these and does not declare them.
        *("onnx", "onnx-ir", "onnxruntime", "torch", "transformers"),
    ),
    convert=(
        *("{bin}/python", "-m", "onnxruntime_genai.models.builder"),
        *("-i", "{checkpoint}", "-o", "{model}", "-c", "{cache}"),
        *("-p", "{precision}", "-e", "cpu"),
    ),
    worker="workers.genai",
    versions=("onnxruntime-genai", "onnxruntime"),
)

PEERS = (
    ORTOLAN,
    GENAI,
    # Not its default: logits for the last position of a prompt alone, as Ortolan does.
    replace(
        GENAI,
        name="onnxruntime-genai-pruned",
        convert=(*GENAI.convert, "--extra_options", "prune_lm_head=true"),
    ),
)


def environment(peer: Peer) -> Path:
    """Return the folder with the programs of a peer's environment, made if need be."""
    if not peer.requirements:
        return Path(sys.executable).parent
    # Named by what is installed: variants of one peer share it.
    folder = ENVIRONMENTS / peer.requirements[0].partition("==")[0]
    programs = folder / "bin"
    wanted = "\n".join(peer.requirements) + hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"{peer.name}: installing into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        pip = [f"{programs}/pip", "install", "--quiet", "-c", str(CONSTRAINTS)]
        subprocess.run([*pip, *peer.requirements], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return programs


def installed_versions(programs: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of `packages` in an environment."""
    code = (
        "import importlib.metadata, json, sys;"
        "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
    )
    command = [f"{programs}/python", "-c", code, *packages]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def converted(peer: Peer, checkpoint: Path, work: Path, *, precision: str, threads: int) -> Path:
    """Return the peer's own form of `checkpoint`, made below `work` if need be."""
    model = work / f"{peer.name}-{precision}"
    if peer.reuse and model.exists():
        return model
    say(f"{peer.name}: converting {checkpoint}")
    # Renamed when complete: an interrupted conversion is not mistaken for a model.
    unfinished = work / f"{model.name}.unfinished"
    for old in (model, unfinished):
        shutil.rmtree(old, ignore_errors=True)
    places = {
        "bin": environment(peer),
        "cache": work / "cache",
        "checkpoint": checkpoint,
        "model": unfinished,
        "precision": precision,
    }
    command = [part.format_map(places) for part in peer.convert]
    # Its chatter goes to stderr: stdout is for the table.
    subprocess.run(command, check=True, stdout=sys.stderr, env=rounds.environment(threads))
    unfinished.rename(model)
    return model


def find_checkpoint(asked: argparse.Namespace) -> tuple[str, Path]:
    """Return the name and the folder of the checkpoint, made if it is a named shape."""
    if asked.checkpoint is not None:
        checkpoint: Path = asked.checkpoint.resolve()
        return checkpoint.name, checkpoint
    checkpoint = (asked.work / asked.shape / "checkpoint").resolve()
    if not (checkpoint / "config.json").exists():
        say(f"writing a random checkpoint of shape {asked.shape}")
        make_checkpoint(asked.shape, checkpoint)
    return asked.shape, checkpoint


def make_prompt(checkpoint: Path, *, tokens: int, new_tokens: int) -> list[int]:
    """Return ids that are the same for the same checkpoint and length.

    Raises:
        ValueError: prompt and answer together exceed the context of the model.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    context = config["max_position_embeddings"]
    if tokens + new_tokens > context:
        raise ValueError(
            f"{checkpoint}: expected at most {context} tokens in all, "
            f"got {tokens} + {new_tokens}. Lower -p or -n."
        )
    return random.Random(0).choices(range(FIRST_ORDINARY_ID, config["vocab_size"]), k=tokens)


def say(text: str) -> None:
    """Tell the person at the terminal, not the file that stdout may go to."""
    print(text, file=sys.stderr, flush=True)


def count(text: str) -> int:
    """Parse a number of tokens or rounds."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure Ortolan and its peers side by side.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="folder with a Hugging Face checkpoint")
    source.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("-p", "--prompt-tokens", type=count, default=128)
    parser.add_argument("-n", "--new-tokens", type=count, default=128)
    parser.add_argument("-r", "--rounds", type=count, default=7)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    asked = parser.parse_args(arguments)
    if asked.new_tokens < 2:
        parser.error("-n: expected at least 2, got 1. The first token belongs to the prefill.")
    return asked


def prepare(asked: argparse.Namespace, name: str, checkpoint: Path) -> list[rounds.Program]:
    """Install every peer and convert the checkpoint for it."""
    work = (asked.work / name).resolve()
    work.mkdir(parents=True, exist_ok=True)
    return [
        rounds.Program(
            name=peer.name,
            python=environment(peer) / "python",
            module=peer.worker,
            model=converted(
                peer, checkpoint, work, precision=asked.precision, threads=asked.threads
            ),
            threads=asked.threads,
        )
        for peer in PEERS
    ]


def side_by_side(asked: argparse.Namespace) -> None:
    """Prepare every peer, measure them in turn, print and write the result."""
    name, checkpoint = find_checkpoint(asked)
    prompt = make_prompt(checkpoint, tokens=asked.prompt_tokens, new_tokens=asked.new_tokens)
    programs = prepare(asked, name, checkpoint)
    machine = report.machine()
    if machine["load_average"] > BUSY:
        say(f"load average {machine['load_average']:.1f}: this machine does other work as well")
    request = {"prompt": prompt, "new_tokens": asked.new_tokens}
    runs, loads = rounds.measure(programs, request, rounds=asked.rounds)
    summaries = report.summarize(
        runs, loads, prompt_tokens=asked.prompt_tokens, new_tokens=asked.new_tokens
    )
    first, *others = PEERS
    comparisons = [report.compare(runs, peer=first.name, other=peer.name) for peer in others]
    print(report.markdown(summaries, comparisons, new_tokens=asked.new_tokens))
    sizes = f"p{asked.prompt_tokens}-n{asked.new_tokens}-t{asked.threads}"
    path = RESULTS / f"{name}-{asked.precision}-{sizes}.json"
    setting = {
        "checkpoint": name,
        "precision": asked.precision,
        "threads": asked.threads,
        "prompt_tokens": asked.prompt_tokens,
        "new_tokens": asked.new_tokens,
        "versions": {
            peer.name: installed_versions(environment(peer), peer.versions) for peer in PEERS
        },
        "machine": machine,
    }
    report.write(path, {**setting, **report.document(runs, summaries, comparisons)})
    say(f"wrote {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks; 2 if that cannot be done."""
    try:
        side_by_side(parse(arguments))
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
