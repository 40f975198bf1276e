"""Options of a request, from the fields of its body."""

import asyncio
import re
import secrets
from dataclasses import replace
from typing import Any

from ortolan.runtime import Grammar, Sampling
from ortolan.runtime.limits import MAX_SEED
from ortolan.server.api.bodies import SamplingFields, StructuredOutputs

_PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def options_of(
    body: SamplingFields, recommended: Sampling, *, limit: int | None, choices: int | None = None
) -> dict[str, Any]:
    """Options of a request. What the body leaves out is what the model recommends.

    If the model recommends nothing, answers are greedy, unless the body sets a sampling option or
    asks for several choices: then the temperature defaults to 1, as in OpenAI's interface.
    """
    given = {name: value for name in _PARAMETERS if (value := getattr(body, name)) is not None}
    is_sampled = bool(given) or (choices or 1) > 1  # greedy choices would all be the same
    if is_sampled and "temperature" not in given and recommended.temperature == 0:
        given["temperature"] = 1.0
    if given.get("top_k") == -1:  # as vLLM's clients turn it off
        given["top_k"] = 0
    seed = secrets.randbits(32) if body.seed is None else body.seed & MAX_SEED
    return {
        "sampling": replace(recommended, **given, logit_bias=body.logit_bias or {}, seed=seed),
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop or [],
        "stop_tokens": body.stop_token_ids or [],
        "min_new_tokens": body.min_tokens or 0,
        "max_new_tokens": None if limit == -1 else limit,
        "ignore_eos": bool(body.ignore_eos),
    }


async def grammar_of(
    schema: dict[str, Any] | None, outputs: StructuredOutputs | None = None
) -> Grammar | None:
    """The grammar of a JSON schema or of vLLM's structured outputs, checked in a thread."""
    if outputs is not None and outputs.json is None:
        pattern = outputs.regex or "|".join(map(re.escape, outputs.choice or ()))
        return await asyncio.to_thread(Grammar.regex, pattern)
    json = schema if outputs is None else outputs.json
    return None if json is None else await asyncio.to_thread(Grammar.json_schema, json)
