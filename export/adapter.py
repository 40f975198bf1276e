"""From a PEFT adapter to a folder that the runtime loads with a bundle.

The adapter is proved like a bundle. The reference is the checkpoint with the adapter merged into
its weights; the bundle computes the same probes with the adapter at run time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from ortolan import files
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions
from ortolan.export.output import describe_files, staged_folder
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.certificate import certify, passed, thresholds
from ortolan.export.proof.probes import make_probes, text_of
from ortolan.export.proof.replay import replay
from ortolan.export.source import open_exportable
from ortolan.export.source.names import located, located_adapter
from ortolan.hub.name import parsed
from ortolan.modeling.checkpoint.adapter import Adapter as Peft
from ortolan.modeling.checkpoint.adapter_config import read_adapter_config
from ortolan.modeling.checkpoint.checkpoint import Source, open_checkpoint
from ortolan.modeling.checkpoint.mapped_weights import updates_of
from ortolan.modeling.lazy_tensor import LowRank
from ortolan.modeling.weights import EMBEDDING, HEAD, TensorWeights, name_template
from ortolan.runtime import limits
from ortolan.runtime.bundle import adapter_folder
from ortolan.runtime.bundle.adapter_folder import (
    Adapter,
    AdapterManifest,
    Factors,
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
    progress: Progress = silent,
) -> Adapter:
    """Convert a PEFT adapter for a bundle, and prove that both compute what PyTorch computes.

    Raises:
        CheckpointError: the adapter or the checkpoint cannot be read, or they do not belong
            together, or the adapter is not a plain LoRA of matrices.
        OptionError: the bundle was exported from another checkpoint, or does not compute a weight
            in a form that can be adapted.
        BundleError: the bundle is damaged.
        OutputError: the target is taken or not writable.
        ParityError: the bundle with the adapter disagrees with PyTorch.
    """
    folder = located_adapter(source, progress=progress)
    base, target = open_bundle(bundle), Path(out).absolute()
    if base.manifest.kind != "decoder":
        raise wrong_kind(base.manifest, what="adapter", expected="a decoder")
    checkpoint = _base(folder) if checkpoint is None else checkpoint
    checkpoint = located(checkpoint, progress=progress)
    model, adapter, updates = _open(folder, base, checkpoint)
    updated, blob = write_factors(_factors(updates, base, folder))
    with staged_adapter(target, force=force) as place:
        certificate = _reference(model, base, progress)
        manifest = AdapterManifest(
            schema=adapter_folder.SCHEMA,
            bundle=fingerprint(base.manifest),
            source_sha256=model.origin.sha256(),
            modules=_modules(adapter),
            ranks=tuple(sorted(set(adapter.ranks.values()))),
            updates=updated,
            files=(),
        )
        write_adapter(place, certificate, manifest, blob=blob)
        measured = replay(base.path, progress, adapter=place)
        if measured.verdict == "FAIL":
            raise ParityError(
                "The bundle with this adapter disagrees with PyTorch: "
                f"{measured.device_summary}. Nothing was written. {MERGE}"
            )
        manifest = msgspec.structs.replace(manifest, quality=measured.quality)
        write_adapter(place, passed(certificate, measured), manifest)
    return open_adapter(target)


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
    """The adapted model, the adapter, and its updates of the model's weights."""
    read_adapter_config(folder)  # report its problems first
    expected = base.manifest.provenance.source_sha256
    got = open_checkpoint(checkpoint).sha256()
    if got != expected:
        raise OptionError(
            f"checkpoint: {base.path.name} was exported from another checkpoint (hash "
            f"{expected[:12]}, got {got[:12]}). Pass the one that the bundle was exported from."
        )
    merged = open_checkpoint(checkpoint, adapter=folder)
    model = open_exportable(
        merged,
        ExportOptions(accept_unknown=base.manifest.provenance.accepted_keys),
        max_context=base.manifest.context_length,
    )
    adapter = merged.adapter
    if adapter is None or not isinstance(model.weights, TensorWeights):
        raise OptionError(
            f"{base.manifest.provenance.model_type}: adapters at run time need a model type that "
            f"`ortolan families` lists as a family. {MERGE}"
        )
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
    updates = updates_of(model.weights, adapter)
    if EMBEDDING in updates:
        raise OptionError(
            f"{folder}: the adapter updates the embedding, which can only be merged. {MERGE}"
        )
    return model, adapter, updates


def _factors(updates: Mapping[str, LowRank], base: Bundle, folder: Path) -> dict[str, Factors]:
    """The updates as the runtime reads them, checked against the products of the bundle."""
    graphs = {
        graph.file: adaptable_weights(base.read(graph.file))
        for role, graph in base.manifest.adaptable_graphs.items()
        if role in STEPPED
    }
    if any(HEAD not in shapes for shapes in graphs.values()):
        # A tied head is the product by the embedding; looking up tokens is no product.
        updates = {EMBEDDING if name == HEAD else name: own for name, own in updates.items()}
    for file, shapes in graphs.items():
        for name, (left, right, _) in updates.items():
            shape = (len(left), right.shape[1])
            if shapes.get(name) != shape:
                raise OptionError(
                    f"{file} has no float32 product by {name} {shape}, which the adapter updates. "
                    f"{MERGE}"
                )
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
