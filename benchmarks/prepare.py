"""Prepare a measurement: environments, checkpoints and converted models.

Everything is created once and kept, below .venv-peers/ and a work folder.
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

STAMP = "installed"
"""File in an environment that is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A Hugging Face checkpoint to measure.

    Attributes:
        name: name in file names.
        path: its folder.
        random: its weights are random.
    """

    name: str
    path: Path
    random: bool


def constraints_for(requirements: Sequence[str]) -> str:
    """constraints.txt without the packages that the requirements pin themselves."""
    own = {name for name, pinned, _ in (line.partition("==") for line in requirements) if pinned}
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.partition("==")[0] not in own)


def environment_folder(peer: Peer) -> Path:
    """Folder of the environment of a peer that has requirements."""
    # Named after its first requirement, so that variants of a peer share it.
    return ENVIRONMENTS / peer.requirements[0].partition("==")[0]


def identity(peer: Peer) -> str:
    """Text that changes when the environment of a peer has to be made again."""
    built = (f"{name}={value}" for name, value in peer.build.items())
    named = "\n".join((*peer.requirements, *peer.without, *built))
    constraints = constraints_for(peer.requirements)
    return named + hashlib.sha256(constraints.encode()).hexdigest()


def is_installed(peer: Peer) -> bool:
    """Whether the environment of a peer exists and is current."""
    if not peer.requirements:
        return True
    stamp = environment_folder(peer) / STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == identity(peer)


def environment(peer: Peer) -> Path:
    """Folder with the programs of a peer's environment, created if needed."""
    if not peer.requirements:
        return Path(sys.executable).parent
    folder = environment_folder(peer)
    programs = folder / "bin"
    constraints = constraints_for(peer.requirements)
    if not is_installed(peer):
        say(f"{peer.name}: installing into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        chosen = folder / "constraints.txt"
        chosen.write_text(constraints, encoding="utf-8")
        variables = {**environ, **peer.build}
        pip = f"{programs}/pip"
        # pip caches wheels by version, not by build flags.
        cache = ["--no-cache-dir"] if peer.build else []
        commands = [[pip, "install", "--quiet", *cache, "-c", str(chosen), *peer.requirements]]
        commands += [[pip, "uninstall", "--quiet", "--yes", name] for name in peer.without]
        for command in commands:
            # Keep stdout for the table.
            subprocess.run(command, check=True, stdout=sys.stderr, env=variables)
        (folder / STAMP).write_text(identity(peer), encoding="utf-8")
    return programs


def installed_versions(programs: Path, packages: Sequence[str]) -> dict[str, str]:
    """Versions of packages in an environment."""
    code = (
        "import importlib.metadata, json, sys;"
        "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
    )
    command = [f"{programs}/python", "-c", code, *packages]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def all_versions(peers: Iterable[Peer]) -> dict[str, dict[str, str]]:
    """Versions to report, by peer."""
    return {peer.name: installed_versions(environment(peer), peer.versions) for peer in peers}


def converted(
    peer: Peer, checkpoint: Checkpoint, model: Path, *, precision: str, threads: int, log: Path
) -> Path:
    """Convert a checkpoint for a peer.

    Args:
        peer: the peer.
        checkpoint: the checkpoint.
        model: folder to create, or to reuse.
        precision: a precision of the peer.
        threads: number of threads.
        log: file for the output of the conversion.

    Raises:
        RuntimeError: the conversion failed.
    """
    recipe = peer.command(precision, random=checkpoint.random)
    if not recipe:
        return checkpoint.path
    if peer.reuse and model.exists():
        return model
    say(f"{peer.name}: converting {checkpoint.path} to {precision}")
    # Renamed when complete, so that an interrupted conversion is not mistaken for a model.
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
            f"{peer.name}: the conversion failed with status {done.returncode}. See {log}."
        )
    unfinished.rename(model)
    return model


def program(
    peer: Peer, checkpoint: Checkpoint, work: Path, *, precision: str, threads: int
) -> rounds.Program:
    """Install a peer, convert a checkpoint for it below `work`, and return its program."""
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
    """A checkpoint of a named shape, written below `work` if needed."""
    path = (work / shape / "checkpoint").resolve()
    if not (path / "config.json").exists():
        say(f"writing a random checkpoint of shape {shape}")
        make_checkpoint(shape, path)
    return Checkpoint(name=shape, path=path, random=True)


def trained_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder, named after the folder."""
    folder = path.resolve()
    return Checkpoint(name=folder.name, path=folder, random=False)


def say(text: str) -> None:
    """Print to the terminal; stdout may be a file."""
    print(text, file=sys.stderr, flush=True)
