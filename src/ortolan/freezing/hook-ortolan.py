"""Adds what PyInstaller does not see: modules imported by name, data files, and metadata."""

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires

from PyInstaller.utils.hooks import (  # type: ignore[import-untyped]
    collect_data_files,
    collect_submodules,
    copy_metadata,
)

from ortolan.distribution import is_runtime_only

_DISTRIBUTION = "ortolan-runtime" if is_runtime_only() else "ortolan"
_NAMES = [re.split(r"[^\w.-]", line)[0] for line in requires(_DISTRIBUTION) or []]

hiddenimports = collect_submodules("ortolan.runtime")
datas = collect_data_files("ortolan", excludes=["freezing"])
for _name in {_DISTRIBUTION, *_NAMES}:  # llguidance, for one, looks up its own version
    with suppress(PackageNotFoundError):
        datas += copy_metadata(_name)
