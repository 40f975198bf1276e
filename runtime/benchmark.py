"""Speed of a loaded model: prompt processing (pp) and token generation (tg).

Knows repetitions and statistics. The names are llama.cpp's, so that figures can be compared.
"""

import statistics
import sys
from collections.abc import Callable

import msgspec
import numpy as np

from ortolan.runtime.model import Model

__all__ = ["Result", "Speed", "measure"]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second over the repetitions."""

    tokens: int
    mean: float
    deviation: float
    median: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        prefill: speed of the prompt (pp).
        decode: speed of the tokens after the first, behind that prompt (tg).
        peak_memory_bytes: largest resident memory of this process so far; `None` on systems
            that do not say (Windows).
    """

    prefill: Speed
    decode: Speed
    repetitions: int
    device: str
    peak_memory_bytes: int | None


def measure(
    model: Model,
    *,
    prompt_tokens: int,
    new_tokens: int,
    repetitions: int,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Generate from random prompts, after one run that is not counted.

    Args:
        model: the model.
        prompt_tokens: length of the prompt.
        new_tokens: length of the completion; end-of-text tokens do not end it.
        repetitions: counted runs.
        progress: called with runs done and runs in all.

    Raises:
        ContextLengthError: the model's context is shorter than prompt and completion.
        InputError: a number is out of range.
    """
    prompt = np.random.default_rng(0).integers(0, model.manifest.vocab_size, prompt_tokens)
    prefill, decode = [], []
    for run in range(repetitions + 1):
        completion = model.generate(prompt, max_new_tokens=new_tokens, ignore_eos=True)
        if run > 0:
            prefill.append(completion.timings.prefill_tokens_per_second)
            decode.append(completion.timings.tokens_per_second)
        if progress is not None:
            progress(run + 1, repetitions + 1)
    return Result(
        prefill=_speed(prompt_tokens, prefill),
        decode=_speed(new_tokens, decode),
        repetitions=repetitions,
        device=model.device,
        peak_memory_bytes=_peak_memory(),
    )


def _speed(tokens: int, runs: list[float]) -> Speed:
    return Speed(
        tokens=tokens,
        mean=statistics.fmean(runs),
        deviation=statistics.stdev(runs) if len(runs) > 1 else 0.0,
        median=statistics.median(runs),
    )


def _peak_memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024
