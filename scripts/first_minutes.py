"""Time the first minutes of a new user, in new environments that hold nothing but Python.

    python scripts/first_minutes.py [--python python3.11]

Builds both wheels and takes three journeys, each in an environment and a folder of its own: a
checkpoint to a chat, an own module to a service, and a bundle on a device without PyTorch. Commands
and programs are those of the documentation. Writes how long each took, and the sizes of wheels and
environments. The cache of pip is empty at the start, so times include downloads from the package
index. Needs the packages build and setuptools, and curl.
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build_runtime_wheel import build_wheel

ROOT = Path(__file__).parents[1]

PORT = 8199

QUESTIONS = "Read lines.\nAnd words?\n"


@dataclass(frozen=True, kw_only=True)
class Journey:
    """A new user's first commands.

    Attributes:
        name: in the table.
        wheel: of which package.
        extras: to install.
        document: whose commands of the shell run, in order, without those that install.
        programs: documents whose first program runs before them.
        more: commands after those of the document.
        files: of the repository that the user has.
        bundles: models that were exported elsewhere.
    """

    name: str
    wheel: str
    extras: str
    document: str | None = None
    programs: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    files: tuple[str, ...] = ("models/pythonic",)
    bundles: tuple[str, ...] = ()


JOURNEYS = (
    Journey(
        name="A checkpoint to a chat",
        wheel="ortolan",
        extras="export,serve",
        document="docs/tutorials/first-chat.md",
    ),
    Journey(
        name="Your own module to a service",
        wheel="ortolan",
        extras="export,serve",
        programs=("docs/guides/own-modules.md", "docs/tutorials/service.md"),
        more=(
            "ortolan serve build/mine",
            "curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json'"
            """ -d '{"prompt": [3, 1, 4], "max_tokens": 8, "return_token_ids": true}'""",
        ),
    ),
    Journey(
        name="A bundle on a device without PyTorch",
        wheel="ortolan-runtime",
        extras="",
        more=(
            'ortolan run build/pythonic "def read_lines(path):" -n 16',
            "ortolan verify build/pythonic",
            "ortolan bench build/pythonic",
            "ortolan doctor",
        ),
        files=(),
        bundles=("models/pythonic",),
    ),
)


def shell_commands(document: str) -> list[str]:
    """Commands of a document, each on a line."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n ", "").splitlines() if line]


def first_program(document: str) -> str:
    """The first program of a document."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)
    if found is None:
        raise ValueError(f"{document} has no program")
    return found[1]


class Machine:
    """An environment and a home of their own.

    Args:
        folder: that holds them.
        python: program that makes the environment.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.work, self._programs = folder / "work", folder / "environment" / "bin"
        self.work.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self._variables = kept | {
            "HOME": str(folder),
            "PATH": f"{self._programs}:/usr/local/bin:/usr/bin:/bin",
            "PIP_CACHE_DIR": str(folder / "cache"),
        }
        self.rows: list[tuple[str, float]] = []
        self.run(f"{python} -m venv environment", cwd=folder, path=os.environ["PATH"])

    def run(
        self,
        command: str,
        *,
        text: str = "",
        cwd: Path | None = None,
        path: str = "",
        as_: str = "",
    ) -> str:
        """Run a command, note its seconds, and return what it printed."""
        began = time.monotonic()
        done = subprocess.run(
            shlex.split(command),
            cwd=cwd or self.work,
            env=self._variables | ({"PATH": path} if path else {}),
            input=text,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-500:]}{done.stderr[-2000:]}")
        self.rows.append((as_ or command, time.monotonic() - began))
        print(f"{self.rows[-1][1]:7.1f} s  {self.rows[-1][0]}", flush=True)
        return done.stdout

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Run a server until the end of the block, and note the seconds until it listens."""
        began = time.monotonic()
        with subprocess.Popen(
            [*shlex.split(command), "--port", str(PORT)],
            cwd=self.work,
            env=self._variables,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            lines = []
            for line in process.stderr or ():
                lines.append(line)
                if "listening on" in line:
                    break
            else:
                raise RuntimeError(f"{command}: {''.join(lines)}")
            self.rows.append((command, time.monotonic() - began))
            print(f"{self.rows[-1][1]:7.1f} s  {command}", flush=True)
            try:
                yield
            finally:
                process.terminate()
                process.communicate()

    def size(self) -> float:
        """Megabytes of the packages in the environment."""
        (packages,) = self._programs.parent.glob("lib/python*/site-packages")
        files = (path for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files) / 1e6


def take(journey: Journey, wheel: Path, folder: Path, python: str) -> Machine:
    """Install, and run the commands of a journey."""
    machine = Machine(folder, python)
    for file in journey.files:
        shutil.copytree(ROOT / file, machine.work / file)
    for model in journey.bundles:
        out = machine.work / "build" / Path(model).name
        export = (sys.executable, "-m", "ortolan", "export", ROOT / model, out)
        subprocess.run([*map(str, export)], check=True, capture_output=True)
    extras = f"[{journey.extras}]" if journey.extras else ""
    shown = f"pip install '{journey.wheel}{extras}'"
    machine.run(f"pip install -q -c {ROOT / 'constraints.txt'} '{wheel}{extras}'", as_=shown)
    for document in journey.programs:
        (machine.work / "program.py").write_text(first_program(document))
        machine.run("python program.py", as_=f"python program.py ({Path(document).name})")
    commands = [*(shell_commands(journey.document) if journey.document else ()), *journey.more]
    while commands:
        command = commands.pop(0)
        if command.startswith("ortolan serve"):
            with machine.serving(command):
                while commands and commands[0].startswith("curl"):
                    machine.run(commands.pop(0).replace(":8080", f":{PORT}"), as_="curl ...")
        else:
            machine.run(command, text=QUESTIONS if command.startswith("ortolan chat") else "")
    return machine


def table(taken: Mapping[str, Machine], wheels: Mapping[str, Path], python: str) -> Iterator[str]:
    """The lines of the document."""
    version = subprocess.check_output(
        [python, "-c", "import platform; print(platform.python_version())"], text=True
    ).strip()
    yield from ("# First minutes", "")
    yield (
        f"`scripts/first_minutes.py` on {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{version}, with an empty cache of pip."
    )
    for name, machine in taken.items():
        yield from ("", f"## {name}", "", "| command | seconds |", "|---|---:|")
        for command, seconds in machine.rows:
            yield f"| `{command.replace('|', chr(92) + '|')}` | {seconds:.1f} |"
        yield f"| in all | {sum(seconds for _, seconds in machine.rows):.0f} |"
    yield from ("", "## Sizes", "", "| | MB |", "|---|---:|")
    for name, wheel in wheels.items():
        yield f"| wheel of `{name}` | {wheel.stat().st_size / 1e6:.2f} |"
    for name, machine in taken.items():
        yield f"| all packages of: {name[0].lower()}{name[1:]} | {machine.size():.0f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Take all journeys, and write the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default="python3.11")
    results = ROOT / "benchmarks" / "results"
    parser.add_argument("--out", type=Path, default=results / "first-minutes.md")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", name, str(ROOT))
        subprocess.run([sys.executable, *build], check=True, capture_output=True)
        (whole,) = folder.glob("ortolan-*.whl")
        wheels = {"ortolan": whole, "ortolan-runtime": build_wheel(folder / "runtime")}
        taken: dict[str, Machine] = {}
        for number, journey in enumerate(JOURNEYS):
            print(journey.name, flush=True)
            wheel, place = wheels[journey.wheel], folder / str(number)
            taken[journey.name] = take(journey, wheel, place, args.python)
        args.out.write_text("\n".join(table(taken, wheels, args.python)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
