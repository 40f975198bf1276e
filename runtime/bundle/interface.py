"""Names of the inputs and outputs of each graph, by role (a key of the manifest's `graphs`).

    role                inputs                                             outputs
    decoder, prefill,   STEP_INPUTS, WINDOW_STARTS if a state has a        logits, HIDDEN for a
    decode, both_ways   window, SOURCE_LENGTHS after an encoder, FEATURES  head, states
                        and FEATURE_ROWS if images may replace tokens,
                        POSITIONS if images are grids, PREVIOUS in a
                        head, states
    encoder             input_ids and lengths, or pixels, mel, wave, or    output, or source states
                        mel and lengths in chunks, or patches with
                        ROW_WEIGHTS and COLUMN_WEIGHTS of a table;
                        token_type_ids if the model tells texts of a pair
                        apart
    attention           those of the encoder, ids of the decoder           attention maps

The graph `both_ways` takes the vectors of an image that see each other, in one row.

The graph `attention` takes whole texts, images or sounds. Only if the decoder takes one token per
call does it take one token with its states, and return them.
"""

from collections.abc import Collection

from ortolan.runtime.bundle.kinds import DECODE, DECODER, ENCODER, MAPS_ROLE
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.source import IDS, POSITIONS, TYPES
from ortolan.runtime.errors import GraphError, ManifestError

OUTPUT = "output"
"""Output of an encoder without a decoder."""

STEP_INPUTS = (IDS, "seqlens_k", "total_sequence_length", "logit_positions")
"""Inputs of every decoder graph, before its states."""

WINDOW_STARTS = "window_starts"
"""Input of a decoder with windowed states, int32 `(batch,)`: how many tokens of each row lie before
the first slot of these states."""

ADAPTERS = "adapters"
"""Input of a decoder graph with adapters: the number of each row's adapter, 0 for none."""

FEATURES, FEATURE_ROWS = "features", "feature_rows"
"""Inputs of a decoder that reads images: vectors float32 `(features, width)`, and for each token
int64 `(batch, sequence)` the row that replaces its embedding; 0 keeps it, so row 0 is not used."""

PREVIOUS = "previous_states"
"""Input of a head that predicts further tokens, float32 `(batch, sequence, size)`: the state before
each token, from the model or from the head."""

SOURCE_LENGTHS = "source_lengths"
"""Input of a decoder after an encoder: the valid tokens of each source."""

TARGET_IDS = "target_ids"
"""The decoder's ids in the graph `attention` of an encoder-decoder."""

LOGITS = "logits"

HIDDEN = "hidden_states"
"""Output of a decoder with a head that predicts further tokens, and of that head: the normalized
stream of every token, float32 `(batch, sequence, size)`."""

PAST, PRESENT, CROSS = "past_key_values", "present", "cross"
"""Prefixes of keys and values: inputs and outputs of a step, and states of a source."""


def state_names(prefix: str, layers: int) -> list[str]:
    """Return the names of keys and values, two per layer, in the order of a graph."""
    return [f"{prefix}.{i}.{kind}" for i in range(layers) for kind in ("key", "value")]


def inputs_of(role: str, manifest: Manifest) -> tuple[str, ...]:
    """Return the input names of the graph with this role."""
    source = () if manifest.source is None else (*manifest.source.inputs(),)
    if role == ENCODER:
        return source
    if role == MAPS_ROLE:
        # a text alone has tokens of one type
        source = tuple(name for name in source if name != TYPES)
        target = (TARGET_IDS if source else IDS,) if manifest.model_kind.has_decoder else ()
        return (*source, *target, *(state.input for state in manifest.carried_by_maps))
    windows = (WINDOW_STARTS,) if manifest.has_windows else ()
    lengths = (SOURCE_LENGTHS,) if source else ()
    features = (FEATURES, FEATURE_ROWS) if manifest.features else ()
    if manifest.features and manifest.features.positions == "grid":
        features = (*features, POSITIONS)
    previous = (PREVIOUS,) if manifest.is_head else ()
    states = (state.input for state in manifest.states)
    return (*STEP_INPUTS, *windows, *lengths, *features, *previous, *states)


def outputs_of(role: str, manifest: Manifest) -> tuple[str, ...]:
    """Return the output names of the graph with this role."""
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
    hidden = () if manifest.hidden_states is None else (HIDDEN,)
    return tuple(states) if role == ENCODER else (LOGITS, *hidden, *states)


def check_names(
    role: str, manifest: Manifest, *, inputs: Collection[str], outputs: Collection[str]
) -> None:
    """Check that a graph has exactly the inputs and outputs of its role."""
    for kind, expected, got in (
        ("inputs", set(inputs_of(role, manifest)), set(inputs)),
        ("outputs", set(outputs_of(role, manifest)), set(outputs)),
    ):
        if expected != got:
            missing = ", ".join(sorted(expected - got)[:4]) or "none"
            surplus = ", ".join(sorted(got - expected)[:4]) or "none"
            raise GraphError(
                f"{manifest.graphs[role].file} has the wrong {kind} for the role {role!r}; "
                f"missing: {missing}; unexpected: {surplus}. Export the checkpoint again."
            )


def check_layout(manifest: Manifest) -> None:
    """Check that this runtime can drive the graphs and states."""
    for role, graph in manifest.graphs.items():
        takes_one = role in (DECODER, DECODE)
        if graph.sequence is not None and not (takes_one and graph.sequence == 1):
            raise ManifestError(
                f"{graph.file}: a {role} graph must take any number of new tokens"
                f"{' or one' if takes_one else ''}, not exactly {graph.sequence}. "
                "Export the checkpoint again."
            )
    decode, prefill = manifest.graphs.get("decode"), manifest.graphs.get("prefill")
    if decode and prefill and decode.sequence == 1 and prefill.min_new_tokens > 2:
        raise ManifestError(
            f"{decode.file} takes 1 new token, but the prefill graph starts at "
            f"{prefill.min_new_tokens}. Export the checkpoint again."
        )
    for state in manifest.states:
        if state.shape[:1] != ("batch",):
            raise ManifestError(
                f"state {state.name!r} must have the batch as its first axis, got {state.shape}. "
                "Export the checkpoint again."
            )
