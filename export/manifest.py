"""Describes a bundle in its manifest."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from ortolan import __version__
from ortolan.export.chat_form import chat_form
from ortolan.export.exportable import Exportable
from ortolan.export.options import PrecisionName
from ortolan.export.output import describe_files
from ortolan.export.settings import Plan
from ortolan.export.weights.store import Stored
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import (
    SCHEMA,
    CacheType,
    Host,
    Manifest,
    Provenance,
    SessionSettings,
    State,
    StateType,
)
from ortolan.runtime.bundle.parts import SOUND
from ortolan.runtime.engine.attention_kernels import query_heads
from ortolan.runtime.engine.ort_session import session_settings
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.graph.rules import read as read_graph
from ortolan.runtime.graph.summary import GraphSummary
from ortolan.runtime.verification.certificate_files import JSON_NAME

_DTYPES: Mapping[torch.dtype, StateType] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""Names of types in the manifest."""

_SCATTERING = frozenset({"ai.onnx::ScatterND", "ai.onnx::TensorScatter"})
"""Operators that write keys and values to slots; GroupQueryAttention can also extend a cache."""


def describe(folder: Path, model: Exportable, plan: Plan, stored: Stored) -> Manifest:
    """The manifest of the bundle in a folder, before its quality is measured."""
    graphs = [
        read_graph((folder / graph.file).read_bytes(), file=graph.file)
        for graph in plan.graph_files.values()
    ]
    of_sounds = SOUND in model.parts
    states = _states(model, plan)
    manifest = Manifest(
        schema=SCHEMA,
        kind=plan.kind,
        precision=_precision(plan, stored),
        attention=plan.options.attention,
        devices=plan.devices,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        graphs=plan.graph_files,
        states=states,
        weights=tuple(file.name for file in stored.blob.files),
        tokens=model.tokens,
        tokenizer="tokenizer.json" if "tokenizer.json" in model.companions else None,
        certificate=JSON_NAME,
        files=describe_files(folder, stored.blob.files),
        provenance=_provenance(model, stored),
        host=Host(
            # what it is follows from the other fields
            session=SessionSettings(disabled_optimizers=(), environment={}),
            onnxruntime=onnxruntime_version(),
            query_heads=query_heads(graphs, states),
            cache=_cache(states, plan, graphs),
        ),
        prefill_precision="int8" if plan.has_int8_prefill else None,
        quantized=stored.quantized,
        source=model.source,
        output=model.output,
        # other machines load these only if the user trusts them
        foreign_operators=tuple(sorted({form for graph in graphs for form in graph.foreign})),
        attention_maps=model.maps if plan.options.attention_maps else (),
        unverified=plan.unverified,
        images=None if of_sounds else model.features,
        sounds=model.features if of_sounds else None,
        hidden_states=model.hidden,
        speech=model.speech,
        dictation=model.dictation,
        texts=model.comparison,
    )
    host = msgspec.structs.replace(manifest.host, session=session_settings(manifest))
    form = chat_form(Bundle(path=folder, manifest=manifest, graphs={}), model.tokenizer)
    return msgspec.structs.replace(manifest, host=host, chat=form)


def _provenance(model: Exportable, stored: Stored) -> Provenance:
    packages, origin = ("torch", "onnx", "onnx-ir", "onnxscript"), model.origin
    return Provenance(
        source_sha256=origin.sha256(),
        model_type=origin.model_type,
        versions={"ortolan": __version__, **{name: version(name) for name in packages}},
        accepted_keys=origin.keys.accepted,
        ignored_keys=origin.keys.ignored,
        left_out=origin.left_out,
        calibrated_on=stored.calibrated_on,
        repository=origin.repository,
    )


def _cache(states: Iterable[State], plan: Plan, graphs: Iterable[GraphSummary]) -> CacheType | None:
    if not any(state.update == "append" for state in states):
        return None
    # the functions of portable attention scatter too
    scatters = any(not _SCATTERING.isdisjoint(graph.operators) for graph in graphs)
    return "slots" if scatters or plan.options.attention == "portable" else "grows"


def _precision(plan: Plan, stored: Stored) -> PrecisionName:
    """Precision of the plan, or `int4` where codes of the source stayed in 4 bits."""
    has_4_bits = any(weight.bits == 4 for weight in stored.quantized)
    return "int4" if has_4_bits and plan.precision == "int8" else plan.precision


def _states(model: Exportable, plan: Plan) -> tuple[State, ...]:
    """States in the type of the activations; with an int8 cache, growing states in 8 bits."""
    states = model.states(_DTYPES[plan.dtype])
    if plan.options.cache == "float":
        return states
    return tuple(
        msgspec.structs.replace(state, dtype="int8") if state.update == "append" else state
        for state in states
    )
