"""The options of one request, which everything that generates a text takes alike.

`generate`, `stream` and whatever else takes a request declare them as `**options:
Unpack[Options]`, and `checked_options` turns them into what a `Request` is made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from threading import Event
from typing import Any, Literal, TypedDict

from ortolan.runtime.arguments import checked_count, checked_flag
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.request import Request, numbered
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.stop import checked_stop
from ortolan.runtime.inputs.ids import TokenIds, checked_ids
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer
from ortolan.runtime.limits import MAX_LOGPROBS, MAX_STOP_TOKENS

__all__ = ["Cancel", "CheckedOptions", "Options", "checked_options"]

Cancel = Callable[[], bool] | Event
"""A function or an event, checked between any two calls of the model."""


class Options(TypedDict, total=False):
    """What a request may say besides its prompt.

    Attributes:
        max_new_tokens: most new tokens; `None` for the rest of the context.
        min_new_tokens: so many new tokens come before an end-of-text or stop token. A stop text
            still ends the text.
        sampling: how tokens are chosen. `None` takes the most probable; `"model"` does what the
            model recommends (`Model.recommended_sampling`).
        temperature: short for a `sampling` with nothing but this; with `"model"`, in place of the
            recommended one.
        stop: texts that end the text and are not part of it.
        stop_tokens: ids that end it, as end-of-text tokens do.
        ignore_eos: go on after end-of-text tokens.
        logprobs: so many of the likeliest tokens, and the chosen one, get their log-probabilities
            into the completion, as the model gives them, before any other option; 0 gives those
            of the chosen ones alone, `None` no others.
        grammar: what the text may be. It ends where the grammar lets it end, or at
            `max_new_tokens` or a stop text.
        cancel: a function or an event, checked between any two calls of the model.
    """

    max_new_tokens: int | None
    min_new_tokens: int
    sampling: Sampling | Literal["model"] | None
    temperature: float | None
    stop: Sequence[str]
    stop_tokens: TokenIds
    ignore_eos: bool
    logprobs: int | None
    grammar: Grammar | None
    cancel: Cancel | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Options that were checked against a bundle; the attributes are those of a `Request`."""

    max_new_tokens: int | None
    min_new_tokens: int
    sampling: Sampling
    eos: frozenset[int]
    stop: Sequence[str]
    logprobs: int | None
    grammar: Grammar | None
    cancelled: Callable[[], bool] | None

    def request(
        self,
        prompt: list[int],
        *,
        limit: int,
        prompt_tokens: int,
        constraints: Constraints,
        index: int = 0,
        source: Any = None,
    ) -> Request:
        """The request of prompt, or source, number `index` of a list.

        Raises:
            InputError: there is not the room for `min_new_tokens`.
        """
        if self.min_new_tokens > limit:
            raise InputError(
                f"min_new_tokens: expected at most the {limit} new tokens that there can be, got "
                f"{self.min_new_tokens}. Lower it, or raise max_new_tokens."
            )
        return Request(
            prompt=prompt,
            limit=limit,
            prompt_tokens=prompt_tokens,
            source=source,
            min_new_tokens=self.min_new_tokens,
            sampling=numbered(self.sampling, index),
            eos=self.eos,
            stop=self.stop,
            logprobs=self.logprobs,
            grammar=self.grammar,
            constraints=constraints,
            cancelled=self.cancelled,
        )


def checked_options(
    options: Options,
    manifest: Manifest,
    tokenizer: Tokenizer | None,
    recommended: Callable[[], Sampling] = Sampling,
) -> CheckedOptions:
    """Check the options of a request, all but what depends on its prompt.

    Args:
        options: as they were given.
        manifest: of the bundle.
        tokenizer: of the bundle, where it has one.
        recommended: gives the sampling that the model recommends.

    Raises:
        TokenizerError: stop texts, and the bundle has no tokenizer.
        SamplingError: the temperature is out of range, or what the model recommends is.
        InputError: an option is unknown, or its value is none of those it may have.
    """
    _refuse_unknown(options)
    max_new_tokens, stop = options.get("max_new_tokens"), checked_stop(options.get("stop", ()))
    if len(stop) > 0 and tokenizer is None:
        raise no_tokenizer("stop")
    stop_tokens = checked_ids(
        options.get("stop_tokens", ()), vocab_size=manifest.vocab_size, what="stop_tokens"
    )
    if len(stop_tokens) > MAX_STOP_TOKENS:
        raise InputError(
            f"stop_tokens: expected at most {MAX_STOP_TOKENS} ids, got {len(stop_tokens)}."
        )
    logprobs, grammar = options.get("logprobs"), options.get("grammar")
    if grammar is not None and not isinstance(grammar, Grammar):
        raise InputError(
            f"grammar: expected ortolan.Grammar, got {type(grammar).__name__}. "
            "Write Grammar.json_schema(...), .regex(...) or .lark(...)."
        )
    if grammar is not None and tokenizer is None:
        raise no_tokenizer("grammar")
    ignores_eos = checked_flag("ignore_eos", options.get("ignore_eos", False))
    eos = () if ignores_eos else manifest.tokens.eos
    return CheckedOptions(
        max_new_tokens=(
            None if max_new_tokens is None else checked_count("max_new_tokens", max_new_tokens)
        ),
        min_new_tokens=checked_count("min_new_tokens", options.get("min_new_tokens", 0), least=0),
        sampling=_sampling(options.get("sampling"), options.get("temperature"), recommended),
        eos=frozenset((*eos, *stop_tokens)),
        stop=stop,
        logprobs=(
            None
            if logprobs is None
            else checked_count("logprobs", logprobs, least=0, most=MAX_LOGPROBS)
        ),
        grammar=grammar,
        cancelled=_cancel_function(options.get("cancel")),
    )


def _refuse_unknown(options: Options) -> None:
    known = sorted(Options.__optional_keys__)
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f" Did you mean {close[0]}?" if close else ""
            raise InputError(f"options: expected {', '.join(known)}, got {shown(name)}.{advice}")


def _sampling(
    sampling: Sampling | Literal["model"] | None,
    temperature: float | None,
    recommended: Callable[[], Sampling],
) -> Sampling:
    """The options of sampling, of which `temperature` is short for one."""
    if isinstance(sampling, str) and sampling == "model":
        own = recommended()
        return own if temperature is None else replace(own, temperature=temperature)
    if sampling is not None and not isinstance(sampling, Sampling):
        got = shown(sampling) if isinstance(sampling, str) else type(sampling).__name__
        raise InputError(
            f'sampling: expected ortolan.Sampling or "model", got {got}. '
            "Write Sampling(temperature=..., ...)."
        )
    if temperature is None:
        return Sampling() if sampling is None else sampling
    if sampling is not None:
        raise InputError(
            "temperature: expected it within `sampling`, got both. "
            "Write Sampling(temperature=..., ...)."
        )
    return Sampling(temperature=temperature)


def _cancel_function(cancel: Cancel | None) -> Callable[[], bool] | None:
    """A function that says whether to stop, where there is one."""
    found = cancel.is_set if isinstance(cancel, Event) else cancel
    if found is not None and not callable(found):
        raise InputError(f"cancel: expected a function or an event, got {shown(found)}.")
    return found
