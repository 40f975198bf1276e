"""The folder in which programs keep what is this user's on this machine."""

import os
from pathlib import Path

__all__ = ["state_folder"]


def state_folder() -> Path:
    """Ortolan's, below `XDG_STATE_HOME`, `LOCALAPPDATA` on Windows, or ~/.local/state."""
    name = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"
    chosen = os.environ.get(name, "")
    # XDG: a path that is not absolute is to be ignored
    folder = Path(chosen) if os.path.isabs(chosen) else Path(os.path.expanduser("~/.local/state"))
    return folder / "ortolan"
