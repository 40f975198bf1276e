"""Linux control groups, version 1 and 2, which limit this process.

In this room `root` is the folder that holds `sys` and `proc`; tests pass another one.
"""

from pathlib import Path


def group_folders(controller: str, root: Path) -> list[Path]:
    """Return the folders of this process's groups and of all their parents, whose limits all hold.

    Version 1 has one folder per controller, such as `cpu` or `memory`; version 2 has one for all.
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
    """Read a small file and strip it; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _with_parents(mount: Path, group: str) -> list[Path]:
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
