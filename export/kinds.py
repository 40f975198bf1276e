"""What an export does for each kind of model: one entry a kind.

Sizes and inputs follow from the sides of a model (`ortolan.export.source.sides`), and what a bundle
of a kind holds from the runtime's entry for it (`ortolan.runtime.bundle.kinds`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ortolan.export.proof.probes import ProbeInput, Probes, pair_probes, single_probes
from ortolan.export.source.calibration import Calibration
from ortolan.export.source.exportable import Exportable
from ortolan.export.source.sides import sides_of
from ortolan.export.trace.attention_maps import (
    trace_decoder_maps,
    trace_encoder_decoder_maps,
    trace_encoder_maps,
)
from ortolan.export.trace.decoder import trace_decoder
from ortolan.export.trace.encoder import trace_encoder
from ortolan.export.trace.encoder_decoder import trace_source_encoder, trace_target_decoder
from ortolan.export.trace.states import cache_states, source_states
from ortolan.modeling.config import DecoderConfig, ModelConfig
from ortolan.runtime.bundle.kinds import ENCODER, MAPS_ROLE, STEPPED
from ortolan.runtime.bundle.manifest import Graph, State, StateType

Tracer = Callable[..., ir.Model]
States = Callable[[DecoderConfig, StateType], Iterable[State]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """What models of one kind are exported by.

    Attributes:
        trace_maps: the graph of what each token attends to, from a config and a dtype.
        trace_encoder: the graph that takes whole sources; `None` without an encoder.
        trace_step: the graph of a decoder's step, for any number of new tokens or a fixed one
            (`sequence`); `None` without a decoder.
        states: of the decoder.
        probes: what the certificate is computed for.
    """

    trace_maps: Tracer
    trace_encoder: Tracer | None = None
    trace_step: Tracer | None = None
    states: tuple[States, ...] = ()
    probes: Probes


EXPORT_KINDS: Mapping[str, ExportKind] = {
    "decoder": ExportKind(
        trace_maps=trace_decoder_maps,
        trace_step=trace_decoder,
        states=(cache_states,),
        probes=single_probes,
    ),
    "encoder": ExportKind(
        trace_maps=trace_encoder_maps, trace_encoder=trace_encoder, probes=single_probes
    ),
    "encoder-decoder": ExportKind(
        trace_maps=trace_encoder_decoder_maps,
        trace_encoder=trace_source_encoder,
        trace_step=trace_target_decoder,
        states=(cache_states, source_states),
        probes=pair_probes,
    ),
}
"""By the kind in the manifest."""


def make_probes(model: Exportable, data: Calibration | None = None) -> list[ProbeInput]:
    """The probes of a model.

    Raises:
        OptionError: there is too little data.
    """
    return EXPORT_KINDS[model.sides.kind].probes(model, data)


def states_of(model: Exportable, dtype: StateType) -> tuple[State, ...]:
    """The states of a model's decoder; none without a decoder."""
    sides = model.sides
    if sides.decoder is None:
        return ()
    makers = EXPORT_KINDS[sides.kind].states
    return tuple(state for make in makers for state in make(sides.decoder, dtype))


def trace_graph(config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a bundle.

    Args:
        config: the model.
        role: of the graph, such as `decoder` or `encoder`.
        graph: says whether a step has a fixed number of tokens.
        dtype: of weights, activations and states.

    Raises:
        ValueError: models of this kind have no such graph.
    """
    kind = EXPORT_KINDS[sides_of(config).kind]
    if role == MAPS_ROLE:
        return kind.trace_maps(config, dtype=dtype)
    if role == ENCODER and kind.trace_encoder is not None:
        return kind.trace_encoder(config, dtype=dtype)
    if role in STEPPED and kind.trace_step is not None:
        return kind.trace_step(config, dtype=dtype, sequence=graph.sequence)
    raise ValueError(f"{role}: no graph of {type(config).__name__}")
