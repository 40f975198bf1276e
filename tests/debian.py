"""Packages of Debian, downloaded without installing them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class SetupError(Exception):
    """A download or a program failed. Says which, and what to check."""


def download(
    packages: Sequence[str],
    folder: Path,
    *,
    state: Path,
    architecture: str | None = None,
    suite: str | None = None,
) -> None:
    """Download packages with a state of apt's own, so that nothing on the system changes.

    Args:
        packages: names.
        folder: where the `.deb` files go.
        state: new folder for apt's lists and caches.
        architecture: another architecture than the system's, such as `arm64`.
        suite: another release than the system's, such as `trixie`.

    Raises:
        SetupError: apt failed.
    """
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    options = {
        "APT::Sandbox::User": "",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    if architecture is not None:
        options |= {"APT::Architecture": architecture, "APT::Architectures": architecture}
    if suite is not None:
        source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main\n"
        (state / "sources.list").write_text(source)
        options |= {
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
        }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    run(["apt-get", "-qq", *words, "update"], cwd=folder)
    run(["apt-get", "-qq", *words, "download", *packages], cwd=folder)


def run(command: Sequence[str], *, cwd: Path) -> None:
    """Run a program.

    Raises:
        SetupError: it failed.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise SetupError(f"{command[0]} failed: {last}. Check the network.")
