"""The sampling that a model recommends: what its `generation_config.json` says of it.

What the file says is applied, and nothing else. transformers also keeps the 50 likeliest tokens
where a file that samples has no `top_k`; here, as in vLLM, all are kept. Without `do_sample` the
most probable token is taken, as in transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.sampling_options import Sampling

__all__ = ["Recommendation", "recommendation", "recommended_sampling"]

GENERATION_CONFIG = "generation_config.json"

_DRAWING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What applies to draws alone, with the value that it has where the file says nothing."""

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
"""What changes the most probable token too."""

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
"""What has an effect in transformers and none here, each with the values that change nothing.

Tokens that are forced or suppressed are not among them: an export puts them into the manifest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What a `generation_config.json` says about sampling.

    Attributes:
        sampling: to generate with; greedy where the file says nothing.
        not_applied: what else the file asks for, by name, and a bundle does not do by itself.
    """

    sampling: Sampling
    not_applied: Mapping[str, Any]


def recommendation(bundle: Bundle) -> Recommendation:
    """Read what a bundle recommends; a bundle without the file recommends nothing.

    Raises:
        SamplingError: the file is no JSON object, or a value is out of range.
        BundleFileError: it was changed.
    """
    if all(file.name != GENERATION_CONFIG for file in bundle.manifest.files):
        return Recommendation(sampling=Sampling(), not_applied={})
    try:
        read = msgspec.json.decode(bundle.read(GENERATION_CONFIG), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"expected a JSON object, got {error}.") from error
    given = {name: value for name, value in read.items() if value is not None}
    draws = given.get("do_sample", False)
    if not isinstance(draws, bool):
        raise _broken(f"do_sample: expected true or false, got {draws!r}.")
    names = (*_DRAWING, *_PENALTIES) if draws else _PENALTIES
    chosen: dict[str, Any] = {name: given[name] for name in names if name in given}
    try:
        sampling = Sampling(**((_DRAWING if draws else {}) | chosen))
    except SamplingError as error:
        raise _broken(str(error).removesuffix(" Change the option.")) from error
    not_applied = {
        name: given[name]
        for name, neutral in _NOT_APPLIED.items()
        if name in given and given[name] not in neutral
    }
    return Recommendation(sampling=sampling, not_applied=not_applied)


def recommended_sampling(bundle: Bundle) -> Sampling:
    """The sampling that a bundle recommends; see `recommendation`."""
    return recommendation(bundle).sampling


def _broken(problem: str) -> SamplingError:
    return SamplingError(
        f"{GENERATION_CONFIG}: {problem} Give `sampling`, or correct the file beside the "
        "checkpoint and export again."
    )
