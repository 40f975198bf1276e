"""From a PEFT adapter to a folder that the runtime loads with a bundle.

The adapter is proved like a bundle. The reference is the checkpoint with the adapter merged into
its weights; the bundle computes the same probes with the adapter at run time.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from torch import Tensor

from ortolan import files
from ortolan.export.derived import tensor_named
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions, Via
from ortolan.export.output import describe_files, staged_folder
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.certificate import certify, passed, thresholds
from ortolan.export.proof.probes import make_probes, text_of
from ortolan.export.proof.replay import replay
from ortolan.export.source import open_exportable
from ortolan.export.source.names import located, located_adapter
from ortolan.export.witness.ask import ask
from ortolan.hub.name import parsed
from ortolan.modeling.checkpoint.adapter import Adapter as Peft
from ortolan.modeling.checkpoint.adapter_config import read_adapter_config
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, Source, open_checkpoint
from ortolan.modeling.lazy_tensor import LazyTensor, LowRank, whole_of
from ortolan.modeling.weights import TensorWeights, name_template
from ortolan.runtime import limits
from ortolan.runtime.bundle import adapter_folder
from ortolan.runtime.bundle.adapter_folder import (
    Adapter,
    AdapterManifest,
    Factors,
    Update,
    open_adapter,
    write_factors,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.kinds import STEPPED
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.graph.adapters import adaptable_weights
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    write_certificate,
)

NAMES = {adapter_folder.NAME, adapter_folder.BLOB, JSON_NAME, ARRAYS_NAME}
"""Files of an adapter."""

MERGE = "Export the checkpoint with the adapter merged: --adapter."


def export_adapter(
    source: str | Path,
    out: str | Path,
    *,
    bundle: str | Path,
    checkpoint: Source | None = None,
    force: bool = False,
    witness: bool = True,
    progress: Progress = silent,
) -> Adapter:
    """Convert a PEFT adapter for a bundle, and prove that both compute what PyTorch computes.

    Args:
        source: folder of the PEFT adapter, or its name on the Hugging Face Hub.
        out: folder to write.
        bundle: the bundle that will use it.
        checkpoint: that the bundle was exported from; by default the one that the adapter names.
        force: replace an adapter at `out`.
        witness: ask PEFT, where it is installed, for the logits of the checkpoint with the adapter.
        progress: called as each step advances.

    Raises:
        CheckpointError: the adapter or the checkpoint cannot be read, or they do not belong
            together, or the adapter is not a plain LoRA of matrices.
        OptionError: the bundle was exported from another checkpoint, or does not compute a weight
            in a form that can be adapted.
        BundleError: the bundle is damaged.
        OutputError: the target is taken or not writable.
        ParityError: the bundle with the adapter disagrees with PyTorch.
        WitnessError: PEFT computes other logits.
    """
    started = time.monotonic()
    folder = located_adapter(source, progress=progress)
    base, target = open_bundle(bundle), Path(out).absolute()
    if base.manifest.kind != "decoder":
        raise wrong_kind(base.manifest, what="adapter", expected="a decoder")
    checkpoint = _base(folder) if checkpoint is None else checkpoint
    checkpoint = located(checkpoint, progress=progress)
    model, adapter, updates = _open(folder, base, checkpoint)
    updated, blob = write_factors(_factors(updates, folder))
    with staged_adapter(target, force=force) as place:
        certificate = _reference(model, base, progress)
        manifest = _described(base, model, adapter, updated)
        write_adapter(place, certificate, manifest, blob=blob)
        measured = replay(base.path, progress, adapter=place)
        if measured.verdict == "FAIL":
            raise ParityError(
                "The bundle with this adapter disagrees with PyTorch: "
                f"{measured.device_summary}. Nothing was written. {MERGE}"
            )
        options, most = ExportOptions(adapter=folder, witness=witness), base.manifest.context_length
        took_s = time.monotonic() - started
        asked = ask(base.path, checkpoint, model, options, most, took_s, run_time_adapter=place)
        manifest = msgspec.structs.replace(manifest, quality=measured.quality, witness=asked)
        write_adapter(place, passed(certificate, measured), manifest)
    return open_adapter(target)


def _described(
    base: Bundle, model: Exportable, adapter: Peft, updates: tuple[Update, ...]
) -> AdapterManifest:
    """The manifest of an adapter before it is proved."""
    return AdapterManifest(
        schema=adapter_folder.SCHEMA,
        bundle=fingerprint(base.manifest),
        source_sha256=model.origin.sha256(),
        modules=_modules(adapter),
        ranks=tuple(sorted(set(adapter.ranks.values()))),
        updates=updates,
        files=(),
    )


def _base(folder: Path) -> str:
    """The checkpoint that an adapter was trained on: a folder, or a name on the Hub."""
    named = read_adapter_config(folder).get("base_model_name_or_path")
    if not isinstance(named, str):
        raise OptionError(
            f"{folder} does not name the checkpoint that it was trained on. Pass it: --checkpoint."
        )
    if not (Path(named).is_dir() or parsed(named)):
        raise OptionError(
            f"{folder}: the adapter was trained on {named!r:.200}, which is not a folder here. "
            "Pass that checkpoint: --checkpoint."
        )
    return named


def _open(
    folder: Path, base: Bundle, checkpoint: Source
) -> tuple[Exportable, Peft, dict[str, LowRank]]:
    """The adapted model, the adapter, and its updates of the products of the bundle."""
    read_adapter_config(folder)  # report its problems first
    expected = base.manifest.provenance.source_sha256
    got = open_checkpoint(checkpoint).sha256()
    if got != expected:
        raise OptionError(
            f"checkpoint: {base.path.name} was exported from another checkpoint (hash "
            f"{expected[:12]}, got {got[:12]}). Pass the one that the bundle was exported from."
        )
    merged = open_checkpoint(checkpoint, adapter=folder)
    adapter = merged.adapter
    if adapter is None:
        raise TypeError(f"{folder}: the checkpoint has no adapter")
    if adapter.new:
        raise OptionError(
            f"{folder}: the adapter replaces {adapter.new[0]} (bias or modules_to_save), "
            f"which can only be merged. {MERGE}"
        )
    largest = max(adapter.ranks.values(), default=0)
    if not 1 <= largest <= limits.MAX_ADAPTER_RANK:
        raise OptionError(
            f"{folder}: the rank must be 1 to {limits.MAX_ADAPTER_RANK} (got {largest}). {MERGE}"
        )
    if adapter.table in adapter.products:
        raise OptionError(
            f"{folder}: the adapter updates the embedding, which can only be merged. {MERGE}"
        )
    graphs = {
        graph.file: adaptable_weights(base.read(graph.file))
        for role, graph in base.manifest.adaptable_graphs.items()
        if role in STEPPED
    }
    model, tensors = _reopened(
        merged, base, {name for shapes in graphs.values() for name in shapes}
    )
    return model, adapter, _updates(tensors, adapter, graphs)


def _reopened(
    merged: Checkpoint, base: Bundle, names: Collection[str]
) -> tuple[Exportable, Mapping[str, Tensor]]:
    """The adapted model and its tensors, opened by the way that names them as the bundle does."""
    ways: tuple[Via | None, ...] = (None, "transformers")
    for via in ways:
        accepted = base.manifest.provenance.accepted_keys
        options = ExportOptions(accept_unknown=accepted, via=via)
        model = open_exportable(merged, options, max_context=base.manifest.context_length)
        if isinstance(model.weights, TensorWeights):
            tensors = model.weights.tensors
            if any(tensor_named(name, tensors) is not None for name in names):
                return model, tensors
    raise OptionError(f"{base.path}: no product of this bundle can be adapted. {MERGE}")


def _updates(
    tensors: Mapping[str, Tensor],
    adapter: Peft,
    graphs: Mapping[str, Mapping[str, tuple[int, int]]],
) -> dict[str, LowRank]:
    """The updates of the products of all graphs, by the names of their weights there."""
    whole = {name: update for name in tensors if (update := _update(tensors[name])) is not None}
    kept = {name for update in whole.values() for name in update.names}
    lost = [name for name in adapter.ranks if name not in kept]
    if lost:
        raise OptionError(
            f"{lost[0]}: an adapter of this tensor can only be merged, not chosen at run time. "
            "Export the checkpoint with --adapter, or train the adapter on other modules."
        )
    head = next((own for own in whole.values() if own.names == {adapter.head}), None)
    updates = dict[str, LowRank]()
    for file, shapes in graphs.items():
        placed = dict[str, LowRank]()
        for name, shape in shapes.items():
            tensor = tensor_named(name, tensors)
            if tensor is None or tensor.shape != shape:
                continue
            # The head of a tied model is the product by its embedding.
            update = head if tensor is adapter.embedding else _update(tensor)
            if update is not None:
                placed[name] = update
        done = {name for update in placed.values() for name in update.names}
        updates = updates or placed
        for name, update in whole.items():
            if not update.names <= done or placed.keys() != updates.keys():
                raise OptionError(
                    f"{file} has no float32 product by {name} {tuple(tensors[name].shape)}, which "
                    f"the adapter updates. {MERGE}"
                )
    return {
        name: LowRank(whole_of(left), whole_of(right), names)
        for name, (left, right, names) in updates.items()
    }


def _update(tensor: Tensor) -> LowRank | None:
    return tensor.update if isinstance(tensor, LazyTensor) else None


def _factors(updates: Mapping[str, LowRank], folder: Path) -> dict[str, Factors]:
    """The updates as the runtime reads them."""
    for name, (left, right, _) in updates.items():
        if not all(bool(factor.isfinite().all()) for factor in (left, right)):
            raise OptionError(
                f"{folder}: the update of {name} has numbers that are not finite. Its training "
                "diverged: use an earlier checkpoint of the adapter."
            )
    return {
        name: Factors(first=right.T.contiguous().numpy(), second=left.T.contiguous().numpy())
        for name, (left, right, _) in updates.items()
    }


def _modules(adapter: Peft) -> tuple[str, ...]:
    """Names of the matrices that an adapter updates, with `{}` for the layer."""
    return tuple(sorted({name_template(name)[0] for name in adapter.ranks}))


def _reference(model: Exportable, base: Bundle, progress: Progress) -> Certificate:
    """PyTorch's outputs with the adapter merged, and the limits of the bundle's own export."""
    manifest = base.manifest
    certificate = certify(
        model,
        make_probes(model),
        thresholds=thresholds(
            manifest.precision,
            allow_poor=manifest.quality is not None and manifest.quality.word == "poor",
            cache="int8" if any(state.dtype == "int8" for state in manifest.states) else "float",
        ),
        text=text_of(model, None),
        progress=progress,
    )
    # the bundle's own certificate covers its tokenizer and other files
    return replace(certificate, surroundings=None)


@contextmanager
def staged_adapter(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder that becomes `target` when the block succeeds."""
    with staged_folder(target, adapter_folder.NAME, "an adapter", _names, force=force) as folder:
        yield folder


def _names(folder: Path) -> set[str]:
    """Names of the files of an adapter; none if the folder is not one."""
    return NAMES if (folder / adapter_folder.NAME).is_file() else set()


def write_adapter(
    place: Path, certificate: Certificate, manifest: AdapterManifest, *, blob: bytes | None = None
) -> None:
    """Write the files of an adapter, and last the manifest that lists them."""
    if blob is not None:
        files.write(place / adapter_folder.BLOB, blob)
    write_certificate(place, certificate)
    listed = tuple(file for file in describe_files(place) if file.name != adapter_folder.NAME)
    manifest = msgspec.structs.replace(manifest, files=listed)
    files.write(place / adapter_folder.NAME, adapter_folder.encode(manifest))
