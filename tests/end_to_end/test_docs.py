"""Every command and every program that the documents show is run as it stands there."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "models/*/README.md")
    for path in REPOSITORY.glob(pattern)
)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NOT_RUN = {
    "pip install": "installs; tests/end_to_end/test_install.py does it in a venv of its own",
    "ortolan train": "takes an hour; tests/modeling/training trains smaller recipes",
}
"""Commands that other tests run, and why not here."""


def blocks(document: str, language: str) -> list[str]:
    text = (REPOSITORY / document).read_text()
    return [body for kind, body in BLOCK.findall(text) if kind == language]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, in which the documents' relative paths mean what they say."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(REPOSITORY / "models", folder / "models")
    return folder


def run(arguments: list[str], workspace: Path) -> None:
    done = subprocess.run(
        arguments,
        cwd=workspace,
        env={
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PATH": "/usr/bin:/bin",
            "XDG_STATE_HOME": str(workspace / "state"),  # not the user's own
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"


def test_readme_shows_commands_and_a_program() -> None:
    assert blocks("README.md", "sh")
    assert blocks("README.md", "python")


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Exports that have run in the workspace: the same line would make the same bundle."""
    return set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_of_the_document_run(document: str, workspace: Path, exported: set[str]) -> None:
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            command = shlex.split(line, comments=True)
            if not command or any(known in line for known in NOT_RUN) or line in exported:
                continue
            if "export" in command:
                exported.add(line)
            name = Path(command[0]).name
            assert name in {"ortolan", "python"}, f"{line}: run by no test"
            program = [sys.executable] + (["-m", "ortolan"] if name == "ortolan" else [])
            run([*program, *command[1:]], workspace)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_programs_of_the_document_run(document: str, workspace: Path) -> None:
    for program in blocks(document, "python"):
        shutil.rmtree(workspace / "build", ignore_errors=True)
        run([sys.executable, "-c", program], workspace)
