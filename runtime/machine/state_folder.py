"""The folder for Ortolan's state of this user on this machine."""

import os
from pathlib import Path


def state_folder() -> Path:
    """Return `ortolan` in `XDG_STATE_HOME`, in `LOCALAPPDATA` on Windows, or in ~/.local/state."""
    name = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"
    chosen = os.environ.get(name, "")
    # the XDG specification says to ignore relative paths
    folder = Path(chosen) if os.path.isabs(chosen) else Path(os.path.expanduser("~/.local/state"))
    return folder / "ortolan"
