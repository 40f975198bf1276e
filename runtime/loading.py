"""From the folder of a bundle to a model that is ready to use."""

import os
from typing import Any, Literal, TypeVar, overload

from ortolan.runtime import limits
from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle, retry_if_replaced
from ortolan.runtime.bundle.packed import Packed, find_packed
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import check_load
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.model import Model, check_kind
from ortolan.runtime.seq2seq import Seq2Seq
from ortolan.runtime.verification.first_load import first_load

__all__ = ["load"]

_MODELS: dict[str, type[Model]] = {model.kind: model for model in (Decoder, Encoder, Seq2Seq)}

M = TypeVar("M", bound=Model)


@overload
def load(
    path: str | os.PathLike[str],
    kind: type[M],
    *,
    device: str = "auto",
    threads: int | None = None,
    weights: Literal["map", "copy"] = "map",
    isolate: bool = False,
    full_check: bool = False,
    trust: bool = False,
) -> M: ...


@overload
def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    weights: Literal["map", "copy"] = "map",
    isolate: bool = False,
    full_check: bool = False,
    trust: bool = False,
) -> Any: ...


@retry_if_replaced
def load(
    path: str | os.PathLike[str],
    kind: type[Model] | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    weights: Literal["map", "copy"] = "map",
    isolate: bool = False,
    full_check: bool = False,
    trust: bool = False,
) -> Any:
    """Open a bundle and make it ready to use.

    The weights are mapped, not copied: a bundle in use may be replaced file by file, and never
    changed in place: a file that is overwritten changes answers, one that is cut short ends the
    process. What `ortolan pack` prepared for this machine is used; when it does not fit, a warning
    of the logger `ortolan.runtime` says why.

    Args:
        path: folder of the bundle.
        kind: `Decoder`, which continues texts; `Seq2Seq`, which writes texts from sources;
            `Encoder`. `None` for the kind of the bundle; a class makes the type of the result
            known, and refuses a bundle of another kind.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. This version computes on the CPU.
        threads: threads within one operator; `None` for the physical cores that this process
            may use, or 1 for a small translator, whose decoder takes 1 in any case.
        weights: `map`; or `copy`, where others may change, cut short or remove the folder while
            it is in use. Every file is then read once, its hash compared, and the folder not
            looked at again. That takes the memory of the weights, two to three times of it while
            loading; what `ortolan pack` prepared is left aside, since it could only be copied.
        isolate: for a bundle from somewhere else: a process of its own, limited in memory and time,
            loads it first and runs a step, unless `ortolan verify` passed here on the same files.
            What would end or stop this process is then an error. Off by default, since it costs
            about a load, and most applications load the bundle that they were shipped with.
        full_check: read all weights once more than needed and compare their hash.
        trust: its maker, where it needs operators of its own and is not from this user and machine.

    Returns:
        A `Decoder`, a `Seq2Seq` or an `Encoder`.

    Raises:
        BundleError: the bundle is missing, damaged, or does what bundles may not do.
        BundleKindError: it is of another kind than requested.
        DeviceError: the device is unknown, absent, or not one the bundle was made for.
        FirstLoadError: `isolate`, and loading it ended that process or exceeded its limits.
        InputError: an argument is none of what it may be.
        MemoryPlanError: what loading takes is more than the memory that is left.
        MissingExtraError: onnxruntime is not installed.
    """
    full_check = checked_flag("full_check", full_check)
    isolate, is_copied = checked_flag("isolate", isolate), _is_copied(weights)
    trust, full = checked_flag("trust", trust), full_check and not is_copied
    named = _checked_kind(kind)
    bundle = open_bundle(path, full_check=full, trust=trust)
    chosen = named or _MODELS[bundle.manifest.kind]
    check_kind(bundle.manifest, chosen)  # before its weights are touched
    bundle, packed = _prepared(bundle, is_copied=is_copied, full_check=full_check)
    if isolate:
        first_load(bundle, device=device, packed=packed)
    return chosen(bundle, Engine(bundle, device=device, threads=threads, packed=packed))


def _checked_kind(kind: type[Model] | None) -> type[Model] | None:
    if kind is None or any(kind is known for known in _MODELS.values()):
        return kind
    raise InputError(f"kind: expected Decoder, Seq2Seq or Encoder, got {shown(kind)}.")


def _prepared(bundle: Bundle, *, is_copied: bool, full_check: bool) -> tuple[Bundle, Packed | None]:
    """Keep the files of a bundle in memory, or find packed weights in its folder, if they fit."""
    packed = None
    if is_copied:
        _check_tensors(bundle)
        bundle = bundle.keeping()
    else:
        packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=full_check)
    check_load(bundle, is_packed=packed is not None)
    return bundle, packed


def _check_tensors(bundle: Bundle) -> None:
    """Refuse what onnxruntime does not copy."""
    for tensor in (tensor for graph in bundle.graphs.values() for tensor in graph.external):
        if tensor.length > limits.MAX_COPIED_BYTES:
            raise InputError(
                f"weights='copy': expected tensors of at most {limits.MAX_COPIED_BYTES} bytes, got "
                f"{tensor.length} of {tensor.name!r}. Load it with weights='map', or export it in "
                "fewer bits."
            )


def _is_copied(weights: Any) -> bool:
    """Whether weights are read into memory."""
    if isinstance(weights, str) and weights in ("map", "copy"):
        return weights == "copy"
    raise InputError(f"weights: expected 'map' or 'copy', got {shown(weights)}.")
