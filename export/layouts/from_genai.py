"""Makes a bundle of a folder that the model builder of onnxruntime-genai wrote.

The weights keep their values. With the checkpoint that the folder was built from, the bundle gets
a certificate like that of an export; without it there is nothing to compare with.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec
import onnx_ir as ir
import torch

from ortolan import __version__, files
from ortolan.export.errors import LayoutError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.layouts.codes import coded_weights, write_coded
from ortolan.export.layouts.genai_config import GenaiConfig, read_config
from ortolan.export.layouts.genai_graph import open_graph
from ortolan.export.manifest import describe_host
from ortolan.export.output import describe_files, staged_bundle, write_manifest
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.probes import make_probes, text_of
from ortolan.export.proof.replay import replay
from ortolan.export.proof.witness import Witness
from ortolan.export.sizes import initializer_sizes
from ortolan.export.source import open_exportable
from ortolan.export.source.companions import COMPANIONS
from ortolan.export.weights.blob import Blob, BlobWriter, bind, write_rest
from ortolan.modeling.weights import ModuleWeights
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.interface import PAST, PRESENT, state_names
from ortolan.runtime.bundle.kinds import DECODER
from ortolan.runtime.bundle.manifest import (
    SCHEMA,
    Graph,
    Manifest,
    Provenance,
    QuantizedTensor,
    State,
    StateType,
    Tokens,
)
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.graph.rules import read as read_graph
from ortolan.runtime.graph.summary import GraphSummary
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import JSON_NAME, write_certificate

GRAPH = "decoder.onnx"

TOKENIZER = "tokenizer.json"

UNVERIFIED = "imported from onnxruntime-genai without the checkpoint that it was built from"

_STATE_TYPES: Mapping[ir.DataType, StateType] = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
}


_NO_WEIGHTS = ModuleWeights(torch.nn.Module())
"""Every initializer of an imported graph has its data."""


def import_genai(
    folder: str | Path,
    out: str | Path,
    *,
    checkpoint: str | Path | None = None,
    allow_poor: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Import a decoder, and prove that the bundle computes what its checkpoint does.

    Args:
        folder: with genai_config.json.
        out: folder of the bundle.
        checkpoint: the checkpoint that the folder was built from; without it the bundle has no
            certificate, and its manifest says why.
        allow_poor: keep a bundle of rounded weights, however far it is from the checkpoint.
        force: replace a bundle at `out`.
        progress: called as each step advances.

    Raises:
        LayoutError: the folder is not that of a decoder, or of one that bundles cannot hold.
        GraphError: the graph has nodes in forms that Ortolan does not write.
        ParityError: the bundle disagrees with the checkpoint.
        OutputError: the target is taken or not writable.
    """
    source, report = Path(folder), progress or silent
    config = read_config(source)
    model = open_graph(source, config)
    with staged_bundle(Path(out).absolute(), force=force) as place:
        witness = Witness([model])
        blob, quantized = _write_weights(place, model, witness, report)
        bind(model, blob)
        proto = ir.to_proto(model)
        files.write(place / GRAPH, proto.SerializeToString(deterministic=True))
        graph = read_graph((place / GRAPH).read_bytes(), file=GRAPH)
        for name in COMPANIONS:
            if (source / name).is_file():
                files.copy(source / name, place / name)
        draft = _describe(config, source, model, graph, blob, quantized)
        if checkpoint is None:
            files_of = describe_files(place, blob.files)
            write_manifest(place, msgspec.structs.replace(draft, files=files_of))
            open_bundle(place)  # the rules for bundles hold for it
        else:
            reference = _open_reference(checkpoint, draft, place)
            _prove(place, draft, blob, reference, witness, allow_poor, report)
    return open_bundle(out)


# --- files ----------------------------------------------------------------------------------------


def _write_weights(
    folder: Path, model: ir.Model, witness: Witness, progress: Progress
) -> tuple[Blob, tuple[QuantizedTensor, ...]]:
    initializers = model.graph.initializers.values()
    sizes = initializer_sizes([model])
    with BlobWriter(folder, sizes=sizes, witness=witness, progress=progress) as writer:
        quantized = write_coded(writer, coded_weights(model.graph))
        write_rest(writer, [model], _NO_WEIGHTS, {}, dtype=torch.float32)
        blob = writer.finish()
    for value in initializers:
        value.metadata_props.clear()
    return blob, quantized


def _describe(
    config: GenaiConfig,
    source: Path,
    model: ir.Model,
    graph: GraphSummary,
    blob: Blob,
    quantized: Sequence[QuantizedTensor],
) -> Manifest:
    """The manifest without files, certificate and quality."""
    about, layers = config.model, config.model.decoder.num_hidden_layers
    state_type = _state_type(model)
    shape = ("batch", about.decoder.num_key_value_heads, "capacity", about.decoder.head_size)
    names = zip(state_names(PAST, layers), state_names(PRESENT, layers), strict=True)
    manifest = Manifest(
        schema=SCHEMA,
        kind="decoder",
        precision=_precision(state_type, quantized),
        attention="fused",
        devices=("cpu",),
        context_length=about.context_length,
        vocab_size=about.vocab_size,
        graphs={DECODER: Graph(file=GRAPH)},
        states=tuple(
            State(
                name=past.removeprefix(f"{PAST}."),
                input=past,
                output=present,
                shape=shape,
                dtype=state_type,
                update="append",
            )
            for past, present in names
        ),
        weights=tuple(file.name for file in blob.files),
        tokens=Tokens(bos=about.bos_token_id, eos=about.eos, pad=about.pad_token_id),
        tokenizer=TOKENIZER if (source / TOKENIZER).is_file() else None,
        certificate=None,
        files=(),
        provenance=Provenance(
            source_sha256=_digest(source / about.decoder.filename, blob),
            model_type=about.type,
            versions={
                "ortolan": __version__,
                **{name: version(name) for name in ("onnx", "onnx-ir")},
            },
        ),
        quantized=tuple(quantized),
        unverified=UNVERIFIED,
    )
    return msgspec.structs.replace(manifest, host=describe_host(manifest, [graph]))


def _precision(
    state_type: StateType, quantized: Sequence[QuantizedTensor]
) -> Literal["fp32", "fp16", "int8", "int4"]:
    bits = {tensor.bits for tensor in quantized}
    if bits:
        return "int4" if 4 in bits else "int8"
    return "fp32" if state_type == "float32" else "fp16"


def _state_type(model: ir.Model) -> StateType:
    states = [value for value in model.graph.inputs if (value.name or "").startswith(PAST)]
    types = {value.dtype for value in states if value.dtype is not None}
    (dtype, *others) = types or {ir.DataType.UNDEFINED}
    if others or dtype not in _STATE_TYPES:
        raise LayoutError(
            f"The KV cache must be float32 or float16 (got {', '.join(map(str, types))}). Build "
            "the folder with -p fp32 or int4, and -e cpu."
        )
    return _STATE_TYPES[dtype]


def _digest(graph: Path, blob: Blob) -> str:
    """Hash of the graph and the weights."""
    digest = hashlib.sha256(graph.read_bytes())
    for file in blob.files:
        digest.update(file.sha256.encode())
    return digest.hexdigest()


# --- the proof ------------------------------------------------------------------------------------


def _open_reference(checkpoint: str | Path, draft: Manifest, folder: Path) -> Exportable:
    """The checkpoint, with the files and limits of the bundle.

    Raises:
        LayoutError: it is not the checkpoint of this model.
    """
    model = open_exportable(checkpoint, tokenizer=None, max_context=draft.context_length)
    for what, expected, got in (
        ("kind", draft.kind, model.kind),
        ("vocab_size", draft.vocab_size, model.vocab_size),
        ("number of states", len(draft.states), len(model.states("float32"))),
    ):
        if expected != got:
            raise LayoutError(
                f"{checkpoint}: expected the {what} {expected} of the imported model, got {got}. "
                "Pass the checkpoint that it was built from."
            )
    companions = {name: folder / name for name in COMPANIONS if (folder / name).is_file()}
    return replace(model, companions=companions, tokens=draft.tokens)


def _prove(
    folder: Path,
    draft: Manifest,
    blob: Blob,
    model: Exportable,
    witness: Witness,
    allow_poor: bool,
    progress: Progress,
) -> None:
    """Write the certificate and the manifest, and replay the proof."""
    certificate = certify(
        model,
        make_probes(model),
        thresholds=thresholds(draft.precision, allow_poor=allow_poor),
        text=text_of(model, None),
        progress=progress,
    )
    certificate = replace(certificate, weights=witness.finish())

    def write(certificate: Certificate, quality: Quality | None) -> None:
        write_certificate(folder, certificate)
        manifest = msgspec.structs.replace(
            draft,
            certificate=JSON_NAME,
            unverified=None,
            quality=quality,
            files=describe_files(folder, blob.files),
        )
        write_manifest(folder, manifest)

    write(certificate, None)
    open_bundle(folder)  # so that a graph that breaks a rule has its own error
    measured = replay(folder, progress)
    if measured.verdict == "FAIL":
        advice = ["a folder built with more bits or smaller blocks"]
        raise ParityError(describe_failure(measured, certificate, advice))
    write(passed(certificate, measured), measured.quality)
