"""`make demo` and `make chat` in a fresh clone, before anything is set up."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]


def made(target: str, folder: Path, stdin: str = "") -> str:
    """What `make target` prints in a new clone below a folder."""
    clone = folder / "ortolan"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    names = ("PATH", "HOME", "XDG_CACHE_HOME")
    done = subprocess.run(
        ["make", target],
        cwd=clone,
        env={name: os.environ[name] for name in names if name in os.environ},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_demo_of_a_fresh_clone_exports_verifies_writes_and_measures(tmp_path: Path) -> None:
    output = made("demo", tmp_path)
    assert "device    PASS" in output
    assert "tg128" in output


def test_chat_of_a_fresh_clone_answers_as_the_readme_shows(tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    shown = re.search(r"^> ([^\n]*\n)(.+?)^```$", readme, re.M | re.S)
    assert shown is not None
    question, answer = shown.groups()
    assert answer.split() == made("chat", tmp_path, question).split()[-len(answer.split()) :]
