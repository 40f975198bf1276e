"""Calls for the vectors or logits of an encoder as they are."""

from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.encoding.call import EncoderCall, Row
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.input_reader import Inputs, as_list


def embed_call(
    rows: Rows, inputs: Inputs, *, prompt: str | None, truncate: bool
) -> EncoderCall[NDArray[np.float32]]:
    """See `Encoder.embed`."""
    rows.expect("embedding", what="embed", expected="an encoder of embeddings")
    width = rows.output.size
    return rows.call(
        _prompted(rows, inputs, prompt),
        lambda outputs: np.stack(outputs) if outputs else np.empty((0, width), np.float32),
        truncate=truncate,
    )


def states_call(rows: Rows, inputs: Inputs, *, truncate: bool) -> EncoderCall[list[Row]]:
    """See `Encoder.states`."""
    rows.expect("states", what="states", expected="an encoder without a head")
    return rows.call(inputs, list, truncate=truncate)


def logits_call(rows: Rows, inputs: Inputs, *, truncate: bool) -> EncoderCall[list[Row]]:
    """See `Encoder.logits`."""
    if rows.output.kind not in ("logits", "ctc"):
        expected = "an encoder with a language model's head, or one of sounds with CTC"
        raise wrong_kind(rows.manifest, what="logits", expected=expected)
    return rows.call(inputs, list, truncate=truncate)


def wave_call(rows: Rows, wave_N: NDArray[np.float32]) -> EncoderCall[Row]:
    """Logits `(vectors, symbols)` of a wave that was read."""
    return EncoderCall([rows.item(wave_N, 0)], itemgetter(0))


def _prompted(rows: Rows, inputs: Inputs, name: str | None) -> Inputs:
    """Put a prompt of the model before each text."""
    if name is not None and not isinstance(name, str):
        raise InputError(f"prompt must be the name of a prompt (got {shown(name)}).")
    prompts = rows.reader.prompts
    chosen = rows.reader.default_prompt if name is None else name
    if not chosen:
        return inputs
    if chosen not in prompts:
        names = ", ".join(map(repr, sorted(prompts))) or "none"
        raise InputError(
            f"The model has no prompt {chosen[:40]!r}. Its prompts: {names}. "
            "Put any other text before the input yourself."
        )
    batch = as_list(inputs)
    if name and not all(isinstance(item, str) for item in batch):
        raise InputError("prompt applies to text, not to token ids. Leave it out, or pass text.")
    return [prompts[chosen] + item if isinstance(item, str) else item for item in batch]
