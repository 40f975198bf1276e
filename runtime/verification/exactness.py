"""Whether a text is the same, to the bit, alone and among others, on this device.

Tries the rules of an exact runner (docs/adr/0021) on the certificate's own probes:

1. rows: a step of several rows gives each what it gives alone;
2. parts: a prompt gives the same in whatever parts it is computed;
3. restored: and when its first block comes from another row.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import GRID, Runner
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.report import ExactReport, Rule

__all__ = ["check_exact"]

PROMPTS = (1, 6, 17, 40, 64)
"""Tokens of the rows that are decoded together."""

ROWS = (2, 3, 5)
"""Rows of a step."""

STEPS = 4

LONGEST = GRID + 45
"""Tokens of the prompt that is cut."""

PARTS = (16, 32, 64)

Values = list[NDArray[Any]]


def check_exact(engine: Engine, certificate: Certificate) -> ExactReport | None:
    """Try every rule; `None` for a model that is not offered in this mode.

    Raises:
        ForkedError: the process was forked after the engine was made.
    """
    if certificate.model_kind.has_encoder or engine.mixes_rows:
        return None
    longest = max(certificate.probes, key=lambda probe: probe.length)
    start = sum(probe.length for probe in certificate.probes[: certificate.probes.index(longest)])
    most = min(longest.length, engine.manifest.context_length - STEPS - 1)
    ids = certificate.token_ids[start : start + most].tolist()
    found = [*_rows(engine, ids), *_parts(engine, ids[:LONGEST])]
    different = dict.fromkeys(rule for rule, is_same in found if not is_same)
    tried = dict(Counter(rule for rule, _ in found))
    return ExactReport(comparisons=len(found), different=tuple(different), tried=tried)


def _rows(engine: Engine, ids: list[int]) -> Iterator[tuple[Rule, bool]]:
    prompts = [ids[:length] for length in PROMPTS]
    tokens = [ids[index % len(ids)] for index in range(STEPS)]
    alone = [_decoded(engine, [prompt], tokens)[0] for prompt in prompts]
    for rows in ROWS:
        together = _decoded(engine, prompts[:rows], tokens)
        for got, expected in zip(together, alone[:rows], strict=True):
            yield "rows", _same(got, expected)


def _decoded(engine: Engine, prompts: list[list[int]], tokens: list[int]) -> list[Values]:
    """Of each prompt, the logits after it and after each of some tokens, decoded together."""
    multiple = engine.rows_multiple
    runner = Runner(engine, engine.slots(-(-len(prompts) // multiple) * multiple), exact=True)
    found = [[runner.prefill(row, prompt)] for row, prompt in enumerate(prompts)]
    runner.select(range(len(prompts)))
    for token in tokens:
        runner.step([token] * len(prompts))
        for row, logits in enumerate(found):
            logits.append(runner.logits_BV[row].copy())
    return found


def _parts(engine: Engine, ids: list[int]) -> Iterator[tuple[Rule, bool]]:
    whole = _runner(engine, GRID)
    expected = [whole.prefill(0, ids), *whole.slots.snapshot().buffers]
    # One token at a time, or a text within one part, is cut nowhere.
    sizes = [] if engine.manifest.takes_one else [size for size in PARTS if size < len(ids)]
    for chunk in sizes:
        runner = _runner(engine, chunk)
        runner.prefill(1, ids[::-1])  # what is left of another text changes nothing
        runner.slots.release(1)
        got = runner.prefill(1, ids)
        yield "parts", _same([got, *runner.slots.snapshot(row=1).buffers], expected)
    if len(ids) > GRID:
        first, runner = _runner(engine, GRID), _runner(engine, GRID)
        first.prefill(0, ids[:GRID])
        runner.restore(first.slots.snapshot(), row=1)
        got = runner.prefill(1, ids[GRID:])
        yield "restored", _same([got, *runner.slots.snapshot(row=1).buffers], expected)


def _runner(engine: Engine, chunk: int) -> Runner:
    return Runner(engine, engine.slots(2), exact=True, chunk=chunk)


def _same(got: Values, expected: Values) -> bool:
    return all(map(np.array_equal, got, expected))
