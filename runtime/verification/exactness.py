"""Checks on this device that a sequence is bit-identical alone and among others.

Tries the rules of an exact runner (docs/adr/0021) on the probes of the certificate:

1. rows: a step of several rows computes each as if alone;
2. parts: a prompt computes the same in chunks of any size;
3. restored: and the same if its first block comes from another row;
4. where vectors of images see each other: parts around them, and a start within them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.pictures import FIRST, runs
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.probe_runs import illustrated_ids
from ortolan.runtime.verification.report import ExactReport, Rule

PROMPTS = (1, 6, 17, 40, 64)
"""Lengths of the prompts that are decoded together."""

ROWS = (2, 3, 5)
"""Batch sizes of a step."""

STEPS = 4

LONGEST = GRID + 45
"""Length of the prompt that is computed in chunks."""

CHUNKS = (16, 32, 64)

Values = list[NDArray[Any]]


def check_exact(engine: Engine, certificate: Certificate) -> ExactReport | None:
    """Try every rule; `None` if the model does not offer exact mode."""
    if certificate.model_kind.has_encoder or engine.exactness.mixes_rows:
        return None
    lengths = [probe.length for probe in certificate.probes]
    ids = certificate.ids(lengths.index(max(lengths)))
    ids = ids[: engine.manifest.context_length - STEPS - 1]
    results = [*_rows(engine, ids), *_parts(engine, ids[:LONGEST])]
    if engine.sees_both_ways:
        results += _around_vectors(engine, certificate)
    different = dict.fromkeys(rule for rule, is_same in results if not is_same)
    tried = dict(Counter(rule for rule, _ in results))
    return ExactReport(comparisons=len(results), different=tuple(different), tried=tried)


def _rows(engine: Engine, ids: list[int]) -> Iterator[tuple[Rule, bool]]:
    prompts = [ids[:length] for length in PROMPTS]
    tokens = [ids[index % len(ids)] for index in range(STEPS)]
    alone = [_decoded(engine, [prompt], tokens)[0] for prompt in prompts]
    for rows in ROWS:
        together = _decoded(engine, prompts[:rows], tokens)
        for values, expected in zip(together, alone[:rows], strict=True):
            yield "rows", _same(values, expected)


def _decoded(engine: Engine, prompts: list[list[int]], tokens: list[int]) -> list[Values]:
    """Return for each prompt its logits and those after each token, decoded in one batch."""
    multiple = engine.exactness.rows_multiple
    runner = Runner(engine, engine.slots(-(-len(prompts) // multiple) * multiple), exact=True)
    logits = [[runner.prefill(row, prompt)] for row, prompt in enumerate(prompts)]
    runner.select(range(len(prompts)))
    for token in tokens:
        runner.step([token] * len(prompts))
        for row in range(len(prompts)):
            logits[row].append(runner.logits_BV[row].copy())
    return logits


def _parts(engine: Engine, ids: list[int]) -> Iterator[tuple[Rule, bool]]:
    expected = _prefilled(_runner(engine, GRID), ids)
    # A graph of one token at a time has no chunks.
    sizes = [] if engine.manifest.takes_one else [size for size in CHUNKS if size < len(ids)]
    for chunk in sizes:
        runner = _runner(engine, chunk)
        runner.prefill(1, ids[::-1])  # leftovers of another sequence must not matter
        runner.slots.release(1)
        yield "parts", _same(_prefilled(runner, ids, row=1), expected)
    if len(ids) > GRID:
        first, runner = _runner(engine, GRID), _runner(engine, GRID)
        first.prefill(0, ids[:GRID])
        runner.restore(first.slots.snapshot(), row=1)
        yield "restored", _same(_prefilled(runner, ids[GRID:], row=1), expected)


def _around_vectors(engine: Engine, certificate: Certificate) -> Iterator[tuple[Rule, bool]]:
    """Cut a probe around vectors that see each other, and continue it from within them."""
    numbers = (number for number, probe in enumerate(certificate.probes) if probe.features)
    if (number := next(numbers, None)) is None:
        return
    ids, _held = illustrated_ids(engine, certificate, number)
    whole = _runner(engine, GRID)
    expected = _prefilled(whole, ids)
    for chunk in CHUNKS:
        runner = _runner(engine, chunk)
        yield "parts", _same(_prefilled(runner, ids, row=1), expected)
    vectors = next(run for run in runs(ids) if ids[run.start] >= FIRST)
    whole.slots.rewind((vectors.start + vectors.stop) // 2)
    left = ids[whole.rewind_to_cut(0, ids) :]
    yield "restored", _same(_prefilled(whole, left), expected)


def _runner(engine: Engine, chunk: int) -> Runner:
    return Runner(engine, engine.slots(2), exact=True, chunk=chunk)


def _prefilled(runner: Runner, ids: list[int], *, row: int = 0) -> Values:
    """The logits and the states after a prompt, or after the rest of one."""
    return [runner.prefill(row, ids), *runner.slots.snapshot(row=row).buffers]


def _same(values: Values, expected: Values) -> bool:
    return all(map(np.array_equal, values, expected))
