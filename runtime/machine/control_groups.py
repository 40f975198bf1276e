"""The control groups of Linux, version 1 and 2, that bound what this process may use.

Here and beside: `root` is the folder that holds `sys` and `proc`, another one in tests.
"""

from pathlib import Path

__all__ = ["group_folders", "read_small"]


def group_folders(controller: str, root: Path) -> list[Path]:
    """Folders of this process's groups and of every group around them: the tightest bound holds.

    Version 1 has a folder for each controller, such as `cpu` or `memory`; version 2 one for all.

    """
    folders: list[Path] = []
    for line in read_small(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, group = [*line.split(":", 2), "", ""][:3]
        if hierarchy == "0":
            folders += _with_parents(root / "sys/fs/cgroup", group)
        elif controller in controllers.split(","):
            folders += _with_parents(root / "sys/fs/cgroup" / controller, group)
    return folders


def read_small(path: Path) -> str:
    """A small file's text without the newline at its end; empty when it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _with_parents(mount: Path, group: str) -> list[Path]:
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
