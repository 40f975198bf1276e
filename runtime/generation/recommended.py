"""Sampling that a model recommends in its `generation_config.json`.

The file applies as written. transformers also adds a top_k of 50 to files that sample without one;
like vLLM, this does not. Without `do_sample`, sampling is greedy, as in transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.sampling_options import Sampling

GENERATION_CONFIG = "generation_config.json"

_DRAWING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Options of draws, with their values if the file leaves them out."""

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
"""Options that apply to greedy sampling, too."""

_NOT_APPLIED: Mapping[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": ([],),
    "diversity_penalty": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "max_length": (20,),
    "max_new_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ([], {}),
    "stop_strings": ([], ""),
    "top_h": (1,),
    "typical_p": (1,),
    "watermarking_config": (),
}
"""Options of transformers that do not apply here, each with its neutral values.

Forced and suppressed tokens are missing: an export puts them into the manifest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Settings that a `generation_config.json` recommends, and those that do not apply here."""

    sampling: Sampling
    not_applied: Mapping[str, Any]


def recommendation(bundle: Bundle) -> Recommendation:
    """Read the recommendation of a bundle; a bundle without the file recommends nothing."""
    if all(file.name != GENERATION_CONFIG for file in bundle.manifest.files):
        return Recommendation(sampling=Sampling(), not_applied={})
    try:
        read = msgspec.json.decode(bundle.read(GENERATION_CONFIG), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"not a JSON object: {error}.") from error
    values = {name: value for name, value in read.items() if value is not None}
    draws = values.get("do_sample", False)
    if not isinstance(draws, bool):
        raise _broken(f"do_sample must be true or false (got {draws!r}).")
    names = (*_DRAWING, *_PENALTIES) if draws else _PENALTIES
    chosen: dict[str, Any] = {name: values[name] for name in names if name in values}
    try:
        sampling = Sampling(**((_DRAWING if draws else {}) | chosen))
    except SamplingError as error:
        raise _broken(str(error)) from error
    not_applied = {
        name: values[name]
        for name, neutral in _NOT_APPLIED.items()
        if name in values and values[name] not in neutral
    }
    return Recommendation(sampling=sampling, not_applied=not_applied)


def _broken(problem: str) -> SamplingError:
    return SamplingError(
        f"{GENERATION_CONFIG}: {problem} Pass a Sampling, or correct the file of the checkpoint "
        "and export again."
    )
