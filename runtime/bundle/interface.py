"""What the graphs of a bundle take and give, by name.

A role is a key of the manifest's `graphs`:

    decoder, prefill, decode   new tokens after those in a cache, and a source where there is one
    encoder                    whole texts or images at once
    attention                  whole texts or images at once, to what attends to what; of a decoder
                               that takes one token at a time, one token and its states
"""

from collections.abc import Collection

from ortolan.runtime.bundle.kinds import DECODE, DECODER, ENCODER, MAPS_ROLE
from ortolan.runtime.bundle.manifest import ImageSource, Manifest
from ortolan.runtime.errors import GraphError, ManifestError

__all__ = [
    "CROSS",
    "IDS",
    "LENGTHS",
    "LOGITS",
    "OUTPUT",
    "PAST",
    "PIXELS",
    "PRESENT",
    "SOURCE_LENGTHS",
    "STEP_INPUTS",
    "TARGET_IDS",
    "check_layout",
    "check_names",
    "inputs_of",
    "outputs_of",
    "state_names",
]

IDS, LENGTHS, PIXELS = "input_ids", "lengths", "pixels"
"""Inputs of an encoder: ids and lengths of texts, or pixels of images."""

OUTPUT = "output"
"""The output of an encoder that has no decoder."""

STEP_INPUTS = (IDS, "seqlens_k", "total_sequence_length", "logit_positions")
"""Inputs of every decoder graph, before those of its states."""

SOURCE_LENGTHS = "source_lengths"
"""Input of a decoder after an encoder: valid tokens of each source."""

TARGET_IDS = "target_ids"
"""The decoder's ids, where the graph `attention` takes those of the source too."""

LOGITS = "logits"

PAST, PRESENT, CROSS = "past_key_values", "present", "cross"
"""Beginnings of the names of keys and values: as a step reads and gives them, and of a source."""


def state_names(prefix: str, layers: int) -> list[str]:
    """Names of keys and values, two a layer, in the order of a graph."""
    return [f"{prefix}.{i}.{kind}" for i in range(layers) for kind in ("key", "value")]


def inputs_of(role: str, manifest: Manifest) -> tuple[str, ...]:
    """Names of what the graph of a role takes."""
    kind = manifest.model_kind
    source = _source_inputs(manifest) if kind.has_encoder else ()
    if role == ENCODER:
        return source
    if role == MAPS_ROLE:
        target = (TARGET_IDS if source else IDS,) if kind.has_decoder else ()
        return (*source, *target, *(state.input for state in manifest.carried_by_maps))
    lengths = (SOURCE_LENGTHS,) if source else ()
    return (*STEP_INPUTS, *lengths, *(state.input for state in manifest.states))


def outputs_of(role: str, manifest: Manifest) -> tuple[str, ...]:
    """Names of what the graph of a role gives."""
    if role == MAPS_ROLE:
        return (
            *manifest.attention_maps,
            *(state.output for state in manifest.carried_by_maps),
        )
    if role == ENCODER and not manifest.model_kind.has_decoder:
        return (OUTPUT,)
    states = [
        state.output for state in manifest.states if (state.update == "source") == (role == ENCODER)
    ]
    return tuple(states) if role == ENCODER else (LOGITS, *states)


def _source_inputs(manifest: Manifest) -> tuple[str, ...]:
    return (PIXELS,) if isinstance(manifest.source, ImageSource) else (IDS, LENGTHS)


def check_names(
    role: str, manifest: Manifest, *, inputs: Collection[str], outputs: Collection[str]
) -> None:
    """See that a graph has the inputs and outputs of its role, and no others.

    Raises:
        GraphError: it has not.
    """
    for kind, expected, got in (
        ("inputs", set(inputs_of(role, manifest)), set(inputs)),
        ("outputs", set(outputs_of(role, manifest)), set(outputs)),
    ):
        if expected != got:
            missing = ", ".join(sorted(expected - got)[:4]) or "none"
            surplus = ", ".join(sorted(got - expected)[:4]) or "none"
            raise GraphError(
                f"{manifest.graphs[role].file}: expected the {kind} of a graph for the role "
                f"{role!r}, got missing: {missing}; unexpected: {surplus}. "
                "Export the checkpoint again."
            )


def check_layout(manifest: Manifest) -> None:
    """See that the graphs and states are such as a runtime can drive.

    Raises:
        ManifestError: a graph for a number of new tokens that no step has, or a state that does
            not begin with the batch.
    """
    for role, graph in manifest.graphs.items():
        takes_one = role in (DECODER, DECODE)
        if graph.sequence is not None and not (takes_one and graph.sequence == 1):
            raise ManifestError(
                f"{graph.file}: expected a {role} graph for any number of new tokens"
                f"{' or for one' if takes_one else ''}, got one for {graph.sequence}. "
                "Export the checkpoint again."
            )
    decode, prefill = manifest.graphs.get("decode"), manifest.graphs.get("prefill")
    if decode and prefill and decode.sequence == 1 and prefill.min_new_tokens > 2:
        raise ManifestError(
            f"{decode.file}: expected a graph for steps of fewer than {prefill.min_new_tokens} "
            "new tokens, got one for 1. Export the checkpoint again."
        )
    for state in manifest.states:
        if state.shape[:1] != ("batch",):
            raise ManifestError(
                f"state {state.name!r}: expected batch as its first axis, got {state.shape}. "
                "Export the checkpoint again."
            )
