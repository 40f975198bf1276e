"""The inputs and outputs of each graph, by role (a key of the manifest's `graphs`).

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

from collections.abc import Iterable

from ortolan.runtime.bundle.kinds import ENCODER, MAPS_ROLE
from ortolan.runtime.bundle.manifest import Manifest, State
from ortolan.runtime.bundle.source import IDS, POSITIONS, TYPES, Shape, Values

OUTPUT = "output"
"""Output of an encoder without a decoder."""

_TOKENS: tuple[str, Shape] = ("int64", ("batch", "sequence"))
_ROWS: tuple[str, Shape] = ("int32", ("batch",))

SEQLENS, TOTAL, LOGIT_POSITIONS = "seqlens_k", "total_sequence_length", "logit_positions"

_STEP: Values = {
    IDS: _TOKENS,
    SEQLENS: _ROWS,
    TOTAL: ("int32", ()),
    LOGIT_POSITIONS: ("int64", ("batch", "rows")),
}

STEP_INPUTS = (*_STEP,)
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


def inputs_of(role: str, manifest: Manifest) -> Values:
    """Return the inputs of the graph with this role."""
    source = {} if manifest.source is None else manifest.source.inputs()
    if role == ENCODER:
        return source
    if role == MAPS_ROLE:
        source.pop(TYPES, None)  # a text alone has tokens of one type
        if manifest.model_kind.has_decoder:
            source[TARGET_IDS if source else IDS] = _TOKENS
        return source | _read(manifest.carried_by_maps)
    values, features = dict(_STEP), manifest.features
    if manifest.has_windows:
        values[WINDOW_STARTS] = _ROWS
    if source:
        values[SOURCE_LENGTHS] = _ROWS
    if features is not None:
        values |= {FEATURES: ("float32", ("features", features.size)), FEATURE_ROWS: _TOKENS}
        if features.positions == "grid":
            values[POSITIONS] = ("int64", ("batch", "sequence", 3))
    if manifest.hidden_states is not None and manifest.is_head:
        values[PREVIOUS] = ("float32", ("batch", "sequence", manifest.hidden_states.size))
    return values | _read(manifest.states)


def outputs_of(role: str, manifest: Manifest) -> Values:
    """Return the outputs of the graph with this role."""
    if role == MAPS_ROLE:
        maps = ("float32", ("batch", "heads", "queries", "keys"))
        return dict.fromkeys(manifest.attention_maps, maps) | _written(manifest.carried_by_maps)
    if role != ENCODER:
        values: Values = {LOGITS: ("float32", ("batch", "rows", manifest.vocab_size))}
        if manifest.hidden_states is not None:
            values[HIDDEN] = ("float32", ("batch", "sequence", manifest.hidden_states.size))
        return values | _written(s for s in manifest.states if s.update != "source")
    if manifest.output is None:
        return _written(s for s in manifest.states if s.update == "source")
    tokens = ("tokens",) if manifest.output_kind.by_token else ()
    return {OUTPUT: ("float32", ("batch", *tokens, manifest.output.size))}


def _read(states: Iterable[State]) -> Values:
    return {state.input: (state.dtype, state.shape) for state in states}


def _written(states: Iterable[State]) -> Values:
    return {state.output: (state.dtype, state.shape) for state in states}
