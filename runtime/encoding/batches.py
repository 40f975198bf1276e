"""Batches of inputs of similar length."""

from collections.abc import Iterator, Sequence

MAX_BATCH_ROWS = 32
"""Maximum number of inputs per call of the graph; more do not use the cores better."""

MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens, padding included, in a batch of several texts, to bound memory."""

MIN_BATCH_SHARE = 0.75
"""Minimum length of the shortest text of a batch, relative to the longest, to bound padding."""


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group the indices of inputs into batches of similar length.

    Padding costs as much as text, and a call of the graph costs little, so a new batch begins where
    the texts get much shorter.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        longest = lengths[batch[0]] if batch else 0
        is_full = (
            len(batch) == MAX_BATCH_ROWS
            or (len(batch) + 1) * longest > MAX_BATCH_TOKENS
            or lengths[index] < MIN_BATCH_SHARE * longest
        )
        if batch and is_full:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
