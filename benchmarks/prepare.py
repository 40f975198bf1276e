"""What has to stand before a measurement: environments, checkpoints and converted models.

Everything is made once and kept, below .venv-peers/ and below a work folder. Does not measure.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path

import rounds
from catalog import Peer
from make_checkpoint import make_checkpoint

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
ENVIRONMENTS = ROOT / ".venv-peers"
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A Hugging Face checkpoint to measure.

    Attributes:
        name: as it stands in the names of files.
        path: its folder.
        random: whether its weights are random.
    """

    name: str
    path: Path
    random: bool


def constraints_for(requirements: Sequence[str]) -> str:
    """Return constraints.txt without the packages that the requirements pin themselves."""
    own = {name for name, pinned, _ in (line.partition("==") for line in requirements) if pinned}
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.partition("==")[0] not in own)


def environment(peer: Peer) -> Path:
    """Return the folder with the programs of a peer's environment, made if need be."""
    if not peer.requirements:
        return Path(sys.executable).parent
    # Named by what is installed: variants of one peer share it.
    folder = ENVIRONMENTS / peer.requirements[0].partition("==")[0]
    programs = folder / "bin"
    constraints = constraints_for(peer.requirements)
    built = (f"{name}={value}" for name, value in peer.build.items())
    named = "\n".join((*peer.requirements, *peer.without, *built))
    wanted = named + hashlib.sha256(constraints.encode()).hexdigest()
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"{peer.name}: installing into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        chosen = folder / "constraints.txt"
        chosen.write_text(constraints, encoding="utf-8")
        variables = {**environ, **peer.build}
        pip = f"{programs}/pip"
        # pip's cache knows a wheel by its version, not by the flags that it was built with.
        cache = ["--no-cache-dir"] if peer.build else []
        commands = [[pip, "install", "--quiet", *cache, "-c", str(chosen), *peer.requirements]]
        commands += [[pip, "uninstall", "--quiet", "--yes", name] for name in peer.without]
        for command in commands:
            # Its chatter goes to stderr: stdout is for the table.
            subprocess.run(command, check=True, stdout=sys.stderr, env=variables)
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


def all_versions(peers: Iterable[Peer]) -> dict[str, dict[str, str]]:
    """Return the versions that belong to a result, by peer."""
    return {peer.name: installed_versions(environment(peer), peer.versions) for peer in peers}


def converted(
    peer: Peer, checkpoint: Checkpoint, model: Path, *, precision: str, threads: int, log: Path
) -> Path:
    """Return the peer's own form of a checkpoint.

    Args:
        peer: whose.
        checkpoint: what to convert.
        model: the folder to make, or to take as it is.
        precision: one that the peer has.
        threads: how many to use.
        log: the file that gets whatever the conversion prints.

    Raises:
        RuntimeError: the conversion failed.
    """
    recipe = peer.command(precision, random=checkpoint.random)
    if not recipe:
        return checkpoint.path
    if peer.reuse and model.exists():
        return model
    say(f"{peer.name}: converting {checkpoint.path} to {precision}")
    # Renamed when complete: an interrupted conversion is not mistaken for a model.
    unfinished = model.with_name(f"{model.name}.unfinished")
    for old in (model, unfinished):
        shutil.rmtree(old, ignore_errors=True)
    places = {
        "bin": environment(peer),
        "cache": model.with_name("cache"),
        "checkpoint": checkpoint.path,
        "model": unfinished,
    }
    with log.open("wb") as output:
        done = subprocess.run(
            [part.format_map(places) for part in recipe],
            cwd=rounds.HERE,
            env=rounds.environment(threads),
            stdout=output,
            stderr=output,
        )
    if done.returncode != 0:
        raise RuntimeError(
            f"{peer.name}: expected a converted model, got status {done.returncode}. See {log}."
        )
    unfinished.rename(model)
    return model


def program(
    peer: Peer, checkpoint: Checkpoint, work: Path, *, precision: str, threads: int
) -> rounds.Program:
    """Install a peer, convert a checkpoint for it below `work`, and return what runs it."""
    model = (work / checkpoint.name / f"{peer.name}-{precision}").resolve()
    model.parent.mkdir(parents=True, exist_ok=True)
    log = model.with_name(f"{model.name}.log")
    return rounds.Program(
        name=peer.name,
        python=environment(peer) / "python",
        module=peer.worker,
        model=converted(peer, checkpoint, model, precision=precision, threads=threads, log=log),
        threads=threads,
        options=peer.options.get(precision, ()),
        log=log,
    )


def random_checkpoint(shape: str, work: Path) -> Checkpoint:
    """Return a checkpoint of a named shape, made below `work` if need be."""
    path = (work / shape / "checkpoint").resolve()
    if not (path / "config.json").exists():
        say(f"writing a random checkpoint of shape {shape}")
        make_checkpoint(shape, path)
    return Checkpoint(name=shape, path=path, random=True)


def trained_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder, named after it."""
    folder = path.resolve()
    return Checkpoint(name=folder.name, path=folder, random=False)


def say(text: str) -> None:
    """Tell the person at the terminal, not the file that stdout may go to."""
    print(text, file=sys.stderr, flush=True)
