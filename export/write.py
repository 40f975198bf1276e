"""Writes the files of a bundle: graphs, weights, and what else is in its folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan import files
from ortolan.export.exportable import Exportable
from ortolan.export.graphs import trace, with_derived
from ortolan.export.inputs.calibration import Data
from ortolan.export.inputs.synthetic import synthetic_inputs
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.inputs.writer import write as write_texts
from ortolan.export.manifest import describe
from ortolan.export.output import write_manifest
from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.export.passes.specialize import specialize
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.certificate import with_graphs
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.probes import inputs_of, make_probes
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.quantize.auto import Chosen, choose
from ortolan.export.quantize.find import find_codes, needs_inputs
from ortolan.export.quantize.rounding import QuantizedWeight
from ortolan.export.quantize.schemes import assign_schemes
from ortolan.export.settings import Plan, draft_of
from ortolan.export.unfinished import read_inputs, write_inputs
from ortolan.export.weights.blob import bind
from ortolan.export.weights.int8_cache import MARGIN, with_int8_cache
from ortolan.export.weights.store import Stored, store
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import JSON_NAME, write_certificate
from ortolan.runtime.verification.weight_sums import ExpectedWeights


def write(
    folder: Path,
    model: Exportable,
    plan: Plan,
    graphs: Mapping[str, ir.Model],
    data: Data,
    certificate: Certificate,
    progress: Progress,
) -> tuple[Manifest, Certificate]:
    """Write the whole bundle, which is not verified yet."""
    if plan.calibrates and data.file is None:
        data = replace(data, inputs=_synthetic_inputs(folder, model, plan, graphs, data, progress))
    if plan.options.cache == "int8":
        model = _with_int8_cache(model, graphs, data.inputs)
    with files.temporary_folder(folder / "choice") as temporary:
        chosen = None
        if plan.auto is not None:
            judging = inputs_of(model, make_probes(model, data.file, proof=plan.options.proof))
            models = list(graphs.values())
            chosen = choose(models, model, plan, data.inputs, judging, temporary, progress)
            plan = replace(plan, precision=chosen.precision)
        stored, expected = _write_files(folder, model, plan, graphs, data, chosen, progress)
    paths = (folder / graph.file for graph in plan.graph_files.values())
    certificate = with_graphs(replace(certificate, weights=expected), paths)
    write_certificate(folder, certificate)
    manifest = describe(folder, model, plan, stored)
    write_manifest(folder, manifest)
    return manifest, certificate


def _synthetic_inputs(
    folder: Path,
    model: Exportable,
    plan: Plan,
    graphs: Mapping[str, ir.Model],
    data: Data,
    progress: Progress,
) -> Inputs:
    """Calibration inputs that the model writes itself, with a temporary draft of the bundle."""
    quantization = plan.quantization
    if quantization is None or data.work is None:
        return Inputs()
    if plan.auto is None:
        schemes = assign_schemes(graphs.values(), quantization, model.weights)
        if not needs_inputs(model.weights, quantization, schemes):
            return Inputs()
    if (before := read_inputs(data.work)) is not None:
        return before
    with files.temporary_folder(folder / "draft") as temporary:

        def written(
            beginnings: Sequence[NDArray[Any]], *, tokens: int, length: int
        ) -> list[NDArray[np.int64]]:
            progress("write text", 0, 1)
            draft = temporary / "bundle"
            files.make_folder(draft)
            _write_draft(draft, model, plan, graphs)
            return write_texts(draft, beginnings, tokens=tokens, length=length, progress=progress)

        inputs = synthetic_inputs(model, written, count=quantization.calibration_sequences)
    write_inputs(data.work, inputs)
    return inputs


def _write_draft(
    folder: Path, model: Exportable, plan: Plan, graphs: Mapping[str, ir.Model]
) -> None:
    """Write an 8-bit CPU bundle of the same model: quick to make, and not verified."""
    draft = draft_of(plan)
    # Nothing encodes text with the draft or asks for its source.
    origin = replace(model.origin, sha256=lambda: "0" * 64)
    model = replace(model, companions={}, origin=origin)
    if draft.dtype == plan.dtype:
        graphs = {role: graphs[role].clone() for role in draft.graph_files}
    else:
        graphs = trace(model, draft, silent)
    stored, _ = _write_files(
        folder, with_derived(model, graphs), draft, graphs, Data(), None, silent
    )
    files.write(folder / JSON_NAME, b"")
    write_manifest(folder, describe(folder, model, draft, stored))


def _with_int8_cache(
    model: Exportable, graphs: Mapping[str, ir.Model], inputs: Inputs
) -> Exportable:
    """The model with scales of its KV cache, from calibration inputs or the probes' text."""
    if inputs.ids:
        return with_int8_cache(model, graphs, inputs.ids)
    texts = inputs_of(model, make_probes(model)).ids
    return with_int8_cache(model, graphs, texts, margin=MARGIN)


def _write_files(
    folder: Path,
    model: Exportable,
    plan: Plan,
    graphs: Mapping[str, ir.Model],
    data: Data,
    chosen: Chosen | None,
    progress: Progress,
) -> tuple[Stored, ExpectedWeights]:
    """Write graphs, weights and companions: everything but certificate and manifest."""
    quantization = plan.quantization
    codes: Iterable[QuantizedWeight] = ()
    if chosen is not None:
        specialized = specialize(graphs, plan, chosen.schemes)
        codes = (chosen.candidates.weight(*own) for own in specialized.schemes.items())
    elif quantization is not None:
        specialized = specialize(
            graphs, plan, assign_schemes(graphs.values(), quantization, model.weights)
        )
        codes = find_codes(model, quantization, specialized.schemes, data, progress)
    else:
        specialized = specialize(graphs, plan, {})
    check_placement(specialized.graphs, plan)
    sums = WeightSums(specialized.graphs.values())
    stored = store(
        folder,
        specialized,
        model,
        plan,
        codes,
        sums=sums,
        origin=data.inputs.origin,
        progress=progress,
    )
    for role, graph in specialized.graphs.items():
        bind(graph, stored.blob)
        if plan.options.attention == "portable":
            attach_bodies(graph)
        proto = ir.to_proto(graph)
        graph_bytes = proto.SerializeToString(deterministic=True)
        files.write(folder / plan.graph_files[role].file, graph_bytes)
    for name, companion in model.companions.items():
        if isinstance(companion, bytes):
            files.write(folder / name, companion)
        else:
            files.copy(companion, folder / name)
    return stored, sums.finish()
