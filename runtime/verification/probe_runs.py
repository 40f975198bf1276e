"""Computes the probes of a certificate in every way that the runtime uses.

A decoder, alone or after an encoder:

1. prefill: the whole probe in one call;
2. decode: cached and teacher-forced, one token per call; for a long probe only its end, after a
   prefill of the rest, and always after one where prompts have weights of their own. Text sources
   are padded here;
3. chunked: the longest probe in several calls;
4. batch: the last tokens of two probes in the same steps, without an encoder.

A head that predicts further tokens runs for one sequence, so it has no batch, and vectors stand for
the states that it reads (`probe_vectors`).

An encoder alone:

1. single: one input per call;
2. batch: several inputs per call, padded to the longest; not waves and images of any size, which
   are computed one by one.

Shape letters: B inputs of a call, T tokens of the longest, R positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.kinds import PREFILL
from ortolan.runtime.bundle.manifest import Source
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.source import IDS, LENGTHS, TYPES, Feeds
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.pictures import FIRST, Picture, run_around
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.inputs.audio import log_mel, read_chunks, wave_of
from ortolan.runtime.inputs.images import normalized
from ortolan.runtime.inputs.readers import reader_of
from ortolan.runtime.verification.certificate import Certificate, kept_positions
from ortolan.runtime.verification.certificate_arrays import damaged
from ortolan.runtime.verification.comparison import Numbers, Rows
from ortolan.runtime.verification.probes import (
    probe_grids,
    probe_sound,
    probe_vectors,
    probe_wave,
    sized_picture,
)
from ortolan.runtime.verification.report import GraphName, PhaseName

BLOCK = 512
"""Positions with logits in memory at once: 256 MiB for a vocabulary of 128 Ki."""

BLOCK_LOGITS = 1 << 24
"""Logits in memory at once, 64 MiB, if the vocabulary allows more than `BLOCK` positions."""

TAIL = 64
"""Tokens at the end of a probe that are decoded one by one."""

PAIR_TOKENS = 128
"""Longest probe that is decoded together with another, in tokens."""

PAIR_STEPS = 8
"""Steps of those two, at most."""

PADDING = 3
"""Padding tokens after a source."""

BATCH_NUMBERS = 1 << 24
"""Output numbers of a batch, 64 MiB; two inputs are always a batch."""


def compute(engine: Engine, certificate: Certificate) -> Iterator[Rows]:
    """Compute every probe in every way, a few rows at a time."""
    if not certificate.model_kind.has_decoder:
        yield from _encoder_rows(engine, certificate)
        return
    least = _own_prefill_from(engine)
    for number, phase in _decoder_runs(certificate):
        probe, ids = certificate.probes[number], certificate.ids(number)
        source = _encoded(engine, certificate, number, is_padded=phase == "decode")
        illustrated, _held = illustrated_ids(engine, certificate, number)
        for position, outputs in _WAYS[phase](engine, illustrated, source):
            start = certificate.start(number) + position
            count = len(ids) if phase == "prefill" else len(outputs)
            yield Rows(
                phase=phase,
                graph=None if least is None else "prefill" if count >= least else "decode",
                probe=probe.name,
                positions=list(range(position, position + len(outputs))),
                part=slice(start, start + len(outputs)),
                next_ids=ids[position + 1 :],
                outputs=outputs,
            )
    if not engine.manifest.is_head:
        yield from _together(engine, certificate)


def total_positions(engine: Engine, certificate: Certificate) -> int:
    """Count the rows that `compute` yields."""
    if not certificate.model_kind.has_decoder:
        ways = 1 if _is_alone(engine) else 2
        return ways * sum(map(len, _positions(certificate)))
    total = 0 if engine.manifest.is_head else len(_pair(certificate)) * _steps(certificate)
    for number, phase in _decoder_runs(certificate):
        total += certificate.probes[number].length
        if phase == "decode":
            ids, _held = illustrated_ids(engine, certificate, number)
            total -= _first_step(engine, ids)
    return total


def illustrated_ids(
    engine: Engine, certificate: Certificate, number: int
) -> tuple[list[int], list[Picture]]:
    """Ids of a probe, and its vectors, which the ids need as long as they are computed."""
    probe, ids = certificate.probes[number], certificate.ids(number)
    pictures, features = engine.pictures, engine.manifest.features
    if not probe.features or pictures is None or features is None:
        return ids, []
    grids = probe_grids(ids, features.token)
    counts = [rows * columns for rows, columns in grids]
    if sum(counts) != probe.features:
        raise damaged(f"{probe.features} placeholders of vectors", f"{sum(counts)}")
    vectors = np.split(probe_vectors(probe.features, features.size), np.cumsum(counts)[:-1])
    held = [
        pictures.hold(own, number, columns=columns)
        for number, (own, (_, columns)) in enumerate(zip(vectors, grids, strict=True))
    ]
    illustrations = (own for picture in held for own in picture.ids)
    return [next(illustrations) if own == features.token else own for own in ids], held


# --- decoders ---------------------------------------------------------------------------------


def _decoder_runs(certificate: Certificate) -> Iterator[tuple[int, PhaseName]]:
    """Yield the index of a probe and a way to compute it."""
    lengths = [probe.length for probe in certificate.probes]
    longest = lengths.index(max(lengths))
    for number in range(len(lengths)):
        yield number, "prefill"
        yield number, "decode"
        if number == longest:
            yield number, "chunked"


def _pair(certificate: Certificate) -> list[int]:
    """Return the indices of the two probes to decode together, if there are two of fit length."""
    if certificate.model_kind.has_encoder:
        return []
    fit = [
        number
        for number, probe in enumerate(certificate.probes)
        if 1 < probe.length <= PAIR_TOKENS and not probe.features
    ]
    return fit[-2:] if len(fit) > 1 else []


def _steps(certificate: Certificate) -> int:
    """Count the steps of the two probes that are decoded together."""
    shortest = min((certificate.probes[number].length for number in _pair(certificate)), default=1)
    return min(PAIR_STEPS, shortest - 1)


def _together(engine: Engine, certificate: Certificate) -> Iterator[Rows]:
    """Decode the last tokens of two probes in one batch."""
    pair, steps = _pair(certificate), _steps(certificate)
    if not pair:
        return
    texts = [certificate.ids(number) for number in pair]
    graph: GraphName | None = None if _own_prefill_from(engine) is None else "decode"
    runner = Runner(engine, engine.slots(len(pair)))
    for row, ids in enumerate(texts):
        runner.prefill(row, ids[:-steps])
    runner.select(range(len(pair)))
    for left in range(steps, 0, -1):
        runner.step([ids[-left] for ids in texts])
        for row, (number, ids) in enumerate(zip(pair, texts, strict=True)):
            position = len(ids) - left
            start = certificate.start(number) + position
            yield Rows(
                phase="batch",
                graph=graph,
                probe=certificate.probes[number].name,
                positions=[position],
                part=slice(start, start + 1),
                next_ids=ids[position + 1 :],
                outputs=runner.logits_BV[row : row + 1].copy(),
            )


def _own_prefill_from(engine: Engine) -> int | None:
    """Return the fewest tokens of a call that a graph with its own weights computes, if any."""
    graph = engine.manifest.graphs.get(PREFILL)
    if engine.manifest.prefill_precision is None or engine.adapters is not None or graph is None:
        return None
    return graph.min_new_tokens


def _first_step(engine: Engine, ids: list[int]) -> int:
    """Return the position in a probe from which it is decoded one by one: no vector follows."""
    length = len(ids)
    after = 1 + max((place for place, own in enumerate(ids) if own >= FIRST), default=-1)
    return max(length - TAIL, min(_own_prefill_from(engine) or 0, length - 1), after)


def _encoded(
    engine: Engine, certificate: Certificate, number: int, *, is_padded: bool
) -> Encoded | None:
    """The source of a probe, if the decoder reads one."""
    if not certificate.model_kind.has_encoder:
        return None
    source, padding = engine.manifest.source, 0
    if is_padded and isinstance(source, TextSource):
        length = certificate.probes[number].source or 0
        padding = min(PADDING, max(source.max_tokens - length, 0))
    return engine.encode_source(_feeds(engine, certificate, [number], padding=padding))


def _in_one_call(
    engine: Engine, ids: list[int], source: Encoded | None
) -> Iterator[tuple[int, Numbers]]:
    """Prefill the whole probe, again for each block of positions, which bounds memory."""
    runner = _runner(engine, source)
    block = max(BLOCK, BLOCK_LOGITS // engine.manifest.vocab_size)
    for start in range(0, len(ids), block):
        positions = range(start, min(start + block, len(ids)))
        yield start, _append(engine, runner, ids, positions)
        runner.slots.rewind(0)


def _one_by_one(
    engine: Engine, ids: list[int], source: Encoded | None
) -> Iterator[tuple[int, Numbers]]:
    runner = _runner(engine, source)
    first = _first_step(engine, ids)
    if engine.manifest.is_head:
        if first > 0:
            _append(engine, runner, ids[:first], [first - 1])
        for position in range(first, len(ids)):
            yield position, _append(engine, runner, ids[position : position + 1], [0])
        return
    if first > 0:
        runner.prefill(0, ids[:first])
    runner.select([0])
    for position in range(first, len(ids)):
        runner.step([ids[position]])
        yield position, runner.logits_BV


def _in_chunks(
    engine: Engine, ids: list[int], source: Encoded | None
) -> Iterator[tuple[int, Numbers]]:
    runner = _runner(engine, source)
    size = min(BLOCK, -(-len(ids) // 3))
    start = 0
    while start < len(ids):
        end = min(start + size, len(ids))
        if engine.sees_both_ways:
            end = run_around(ids, end).stop
        yield start, _append(engine, runner, ids[start:end], range(end - start))
        start = end


def _append(
    engine: Engine, runner: Runner, ids: Sequence[int], positions: Sequence[int]
) -> Numbers:
    """Append part of a probe in one call, with vectors in place of the states that a head reads."""
    hidden, length = engine.manifest.hidden_states, runner.slots.lengths[0]
    if hidden is None or not engine.manifest.is_head:
        return runner.chunk(0, ids, positions=positions)
    vectors = probe_vectors(length + len(ids), hidden.size)[length:]
    return runner.chunk(0, ids, positions=positions, previous_SE=vectors)


def _runner(engine: Engine, source: Encoded | None) -> Runner:
    slots = engine.slots()
    if source is not None:
        slots.sources.put([0], source)
    return Runner(engine, slots)


_WAYS: dict[
    PhaseName, Callable[[Engine, list[int], Encoded | None], Iterator[tuple[int, Numbers]]]
] = {
    "prefill": _in_one_call,
    "decode": _one_by_one,
    "chunked": _in_chunks,
}


# --- encoders ---------------------------------------------------------------------------------


def _encoder_rows(engine: Engine, certificate: Certificate) -> Iterator[Rows]:
    manifest, lengths = engine.manifest, [probe.length for probe in certificate.probes]
    calls: list[tuple[PhaseName, list[int]]] = [("single", [n]) for n in range(len(lengths))]
    if not _is_alone(engine):
        size = 1 if manifest.output is None else manifest.output.size
        calls += [("batch", group) for group in groups(lengths, size)]
    all_positions = _positions(certificate)
    offsets = list(accumulate(map(len, all_positions), initial=0))
    for phase, group in calls:
        outputs = engine.encode(_feeds(engine, certificate, group))[OUTPUT]
        for number, output in zip(group, outputs, strict=True):
            rows = output if output.ndim > 1 else output[None]
            for start in range(0, len(all_positions[number]), BLOCK):
                positions = all_positions[number][start : start + BLOCK]
                first = offsets[number] + start
                yield Rows(
                    phase=phase,
                    probe=certificate.probes[number].name,
                    positions=positions,
                    part=slice(first, first + len(positions)),
                    next_ids=[],
                    outputs=rows[positions],
                )


def _is_alone(engine: Engine) -> bool:
    source = engine.manifest.source
    return source is not None and source.is_alone


def _positions(certificate: Certificate) -> list[list[int]]:
    return [kept_positions(probe.length, certificate.output) for probe in certificate.probes]


def groups(lengths: list[int], size: int) -> list[list[int]]:
    """Split inputs into batches as large as memory allows, of at least two if there are two."""
    batches: list[list[int]] = []
    for number in range(len(lengths)):
        batch = [*batches[-1], number] if batches else [number]
        longest = max(lengths[place] for place in batch)
        if batches and (len(batch) <= 2 or len(batch) * longest * size <= BATCH_NUMBERS):
            batches[-1] = batch
        else:
            batches.append([number])
    if len(batches) > 1 and len(batches[-1]) == 1:
        last = batches.pop()
        batches[-1] += last
    return batches


def _feeds(
    engine: Engine, certificate: Certificate, group: list[int], *, padding: int = 0
) -> Feeds:
    """Inputs of an encoder for a batch of probes; texts get at least so much padding."""
    if isinstance(engine.manifest.source, TextSource):
        return _texts(certificate, group, padding)
    values = [_value(engine.manifest.source, certificate, number) for number in group]
    return reader_of(engine.manifest, None).feeds(values)


def _texts(certificate: Certificate, group: list[int], padding: int) -> Feeds:
    """Texts of an encoder as one batch, `(B, T)`."""
    if certificate.model_kind.has_decoder:
        ids, lengths = certificate.source_ids, [probe.source or 0 for probe in certificate.probes]
    else:
        ids, lengths = certificate.token_ids, [probe.length for probe in certificate.probes]
    starts = list(accumulate(lengths, initial=0))
    longest = max(lengths[number] for number in group) + padding
    feeds: Feeds = {LENGTHS: np.array([lengths[number] for number in group], np.int32)}
    for name, numbers in ((IDS, ids), (TYPES, certificate.types)):
        if numbers is not None:
            feeds[name] = np.zeros((len(group), longest), np.int64)
            for row, number in enumerate(group):
                part = numbers[starts[number] : starts[number + 1]]
                feeds[name][row, : len(part)] = part
    return feeds


def _value(source: Source | None, certificate: Certificate, number: int) -> Numbers:
    """The image or sound of a probe, as its reader returns it."""
    probe = certificate.probes[number]
    vectors = probe.length if probe.source is None else probe.source
    match source:
        case ImageSource():
            images = () if certificate.images is None else certificate.images
            return normalized(images[number], source)
        case PatchSource():
            return normalized(sized_picture(source, number), source)
        case AudioSource():
            (bins_MF,) = read_chunks(probe_sound(source, number), source)[:1]
            return np.asarray(bins_MF)
        case WaveSource():
            return wave_of(probe_wave(source, number, vectors), source)
        case ChunkedSource():
            return log_mel(probe_wave(source, number, vectors), source)
        case _:
            raise TypeError(f"{source} is not an image or a sound")
