"""Whether a bundle can be loaded here, tried in a process of its own."""

from typing import Literal

import msgspec

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.memory_plan import check_load
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.errors import FirstLoadError
from ortolan.runtime.isolation.first_load import first_load

__all__ = ["Trial", "try_load"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a first load went.

    Attributes:
        outcome: `verified`, where nothing was tried, since a verification passed here; `passed`;
            `refused`, by an error as loading it would raise; `ended`, where the process did not
            live, or did not keep to its limits.
        text: of the error, or in words what the outcome is.
    """

    outcome: Literal["verified", "passed", "refused", "ended"]
    text: str


def try_load(bundle: Bundle) -> Trial:
    """Load a bundle and run a step of it, in a process of its own, unless it was verified here."""
    try:
        packed = find_packed(bundle, onnxruntime=onnxruntime_version())
        check_load(bundle, is_packed=packed is not None)
        is_new = first_load(bundle, packed=packed)
    except FirstLoadError as error:
        return Trial(outcome="ended", text=f"{error}")
    except OrtolanError as error:
        return Trial(outcome="refused", text=f"{error}")
    if is_new:
        return Trial(outcome="passed", text="passed, with a step, in a process of its own")
    return Trial(outcome="verified", text="verified on this machine, with these files")
