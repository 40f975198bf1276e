"""Options of a request: what callers pass to `generate`, `stream` and `submit`.

Methods declare them as `**options: Unpack[Options]`; a `RequestReader` checks them.
"""

from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from threading import Event
from typing import Any, Literal, TypedDict

from ortolan.runtime.arguments import checked_count, checked_number, refuse_unknown
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.beam_search import Beams, EarlyStopping
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.ids import TokenIds
from ortolan.runtime.limits import MAX_LOGPROBS

MAX_BEAMS = 64
"""Maximum number of beams per source."""

MAX_LENGTH_PENALTY = 10.0
"""Maximum absolute length penalty: beyond it, powers of the length overflow the scores."""

Cancel = Callable[[], bool] | Event
"""A function or an event, polled between calls of the model."""


class Options(TypedDict, total=False):
    """Options of a request, all optional.

    Attributes:
        max_new_tokens: maximum number of new tokens; `None`, the default, fills the context. 0 is
            for requests with `prompt_logprobs`.
        min_new_tokens: minimum number of new tokens before an EOS or stop token is allowed. A stop
            text still ends the sequence.
        sampling: how tokens are chosen: a `Sampling`, or `"model"` for what the model recommends
            (`recommended_sampling`). `None`, the default, takes the most probable token.
        temperature: short for `Sampling(temperature=...)`; with `sampling="model"` it replaces the
            recommended temperature.
        stop: texts that end the sequence. The completion's text does not include them.
        stop_tokens: token ids that end the sequence like EOS.
        ignore_eos: continue after EOS.
        logprobs: return log-probabilities of the chosen token and of the top k tokens, before
            sampling options apply; 0 for the chosen token only.
        prompt_logprobs: return the same for the tokens of the prompt. The prompt is then computed
            without the prefix cache. Only for decoders. Where one scale rounds the activations of a
            whole call (docs/adr/0006), the new tokens may differ from those without it.
        adapter: name of an adapter that the bundle was loaded with; `None`, the default, for none.
        grammar: a `Grammar` that restricts the text. The sequence ends when the grammar does.
        draft: `PromptLookup()`, `MtpHead()` or `DraftModel(model)` guesses the next tokens, and the
            model checks several guesses per call. Prompts are then continued one after the other.
            Guesses change only the time: any draft gives the same completion. Only for decoders.
        cancel: a function or an event, polled between calls of the model.
    """

    max_new_tokens: int | None
    min_new_tokens: int
    sampling: Sampling | Literal["model"] | None
    temperature: float | None
    stop: Sequence[str]
    stop_tokens: TokenIds
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    adapter: str | None
    grammar: Grammar | None
    draft: Draft | None
    cancel: Cancel | None


class BeamOptions(Options, total=False):
    """Options of `Seq2Seq.generate`: those of a beam search, and `Options`.

    A beam search finds the most probable sequence, so with more than one beam only
    `max_new_tokens` and `cancel` of `Options` apply; the others raise.

    Attributes:
        beams: number of beams, 1 to 64. 1, the default, samples instead of searching.
        n_best: number of sequences to return per source, at most `beams`; 1 by default.
        length_penalty: above 0 favors long sequences, below 0 short ones; 1.0 by default.
        early_stopping: when the search ends: `True` as soon as there are `beams` complete
            sequences, `False`, the default, when better ones are unlikely, `"never"` when better
            ones are impossible.
    """

    beams: int
    n_best: int
    length_penalty: float
    early_stopping: EarlyStopping


def adapter_number(name: str | None, adapters: Sequence[str]) -> int:
    """Return the number of an adapter, counted from 1; 0 for `None`."""
    if name is None:
        return 0
    if isinstance(name, str) and name in adapters:
        return 1 + adapters.index(name)
    names = ", ".join(adapters) if adapters else "none"
    raise InputError(
        f"adapter {shown(name)} is not loaded (loaded: {names:.300}). "
        "Load the bundle with adapters={name: folder}."
    )


def logprobs_count(options: Options, name: Literal["logprobs", "prompt_logprobs"]) -> int | None:
    """Return the number of top tokens in log-probabilities; `None` for no log-probabilities."""
    count = options.get(name)
    return None if count is None else checked_count(name, count, least=0, most=MAX_LOGPROBS)


def checked_beams(options: BeamOptions) -> tuple[Beams, Options]:
    """Validate and split off the options of a beam search."""
    refuse_unknown("options", options, BeamOptions.__optional_keys__)
    own = BeamOptions.__optional_keys__ - Options.__optional_keys__
    others: Any = {name: value for name, value in options.items() if name not in own}
    beams = checked_count("beams", options.get("beams", 1), most=MAX_BEAMS)
    chosen = Beams(
        beams=beams,
        n_best=checked_count("n_best", options.get("n_best", 1)),
        length_penalty=checked_number(
            "length_penalty", options.get("length_penalty", 1.0), most=MAX_LENGTH_PENALTY
        ),
        early_stopping=_early_stopping(options.get("early_stopping", False)),
    )
    if beams == 1:
        for name in ("n_best", "length_penalty", "early_stopping"):
            if getattr(chosen, name) != getattr(Beams(beams=1), name):
                raise InputError(f"{name} needs a beam search. Set beams above 1, or leave it out.")
        return chosen, others
    checked_count("n_best", chosen.n_best, most=beams)
    for name, value in others.items():
        is_empty = value is None or value is False or (isinstance(value, Sized) and not len(value))
        if name not in ("max_new_tokens", "cancel") and not is_empty:
            raise InputError(
                f"{name} does not apply to a beam search, which finds the most probable sequence. "
                "Leave it out, or set beams to 1."
            )
    return chosen, others


def _early_stopping(value: Any) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "never":
        return "never"
    raise InputError(f'early_stopping must be True, False or "never" (got {shown(value)}).')


def chosen_sampling(options: Options, recommended: Callable[[], Sampling]) -> Sampling:
    """Return the sampling that a request asks for."""
    sampling, temperature = options.get("sampling"), options.get("temperature")
    if isinstance(sampling, str) and sampling == "model":
        chosen = recommended()
        return chosen if temperature is None else replace(chosen, temperature=temperature)
    if sampling is not None and not isinstance(sampling, Sampling):
        got = shown(sampling) if isinstance(sampling, str) else type(sampling).__name__
        raise InputError(
            f'sampling must be an ortolan.Sampling or "model" (got {got}). '
            "Write Sampling(temperature=..., ...)."
        )
    if temperature is None:
        return sampling or Sampling()
    if sampling is not None:
        raise InputError(
            "temperature and sampling exclude each other. Write Sampling(temperature=..., ...)."
        )
    return Sampling(temperature=temperature)


def cancel_function(cancel: Cancel | None) -> Callable[[], bool] | None:
    """Return the function to poll, if there is one; or InputError."""
    function = cancel.is_set if isinstance(cancel, Event) else cancel
    if function is not None and not callable(function):
        raise InputError(f"cancel must be a function or an event (got {shown(function)}).")
    return function
