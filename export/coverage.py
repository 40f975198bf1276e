"""Which models can be exported, by which way, and how exact their bundles were in tests.

`coverage.json` is written by `scripts/families_table.py`, which exports a tiny model of each type
and compares its bundle with transformers.
"""

from importlib.resources import files
from typing import get_args

import msgspec

from ortolan.export.options import Via

DATA = "coverage.json"

BOUND = 1e-4
"""The largest error of a type that counts as supported, relative to the largest logit."""

WAYS: tuple[Via, ...] = get_args(Via)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of one model type by one way.

    Attributes:
        model_type: as config.json names it.
        way: `family` for a family of `ortolan.modeling`, `transformers` for the model as
            transformers computes it.
        kind: of the bundle: `decoder`, `encoder` or `encoder-decoder`.
        error: the largest difference from transformers over the largest number that transformers
            gives, of weights in fp32; `None` where there is no bundle to compare.
        tokens_equal: whether texts that are generated greedily are those of transformers; `None`
            where nothing is generated.
        note: what is left out, or why there is no bundle.
    """

    model_type: str
    way: Via
    kind: str
    error: float | None
    tokens_equal: bool | None
    note: str = ""

    @property
    def supported(self) -> bool:
        """Whether the bundle computes what transformers computes."""
        return self.error is not None and self.error <= BOUND and self.tokens_equal is not False


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows, sorted by model type and way.

    Attributes:
        transformers: the version that was compared with.
    """

    transformers: str
    rows: tuple[Row, ...]

    def counts(self) -> dict[Via, int]:
        """How many types are supported, by each way."""
        return {way: sum(r.supported for r in self.rows if r.way == way) for way in WAYS}

    def of(self, model_type: str) -> tuple[Row, ...]:
        """The rows of one model type."""
        return tuple(row for row in self.rows if row.model_type == model_type)


def read_coverage() -> Coverage:
    """What was measured of this version."""
    return decode(files("ortolan.export").joinpath(DATA).read_bytes())


def decode(data: bytes) -> Coverage:
    """The contents of `coverage.json`."""
    return msgspec.json.decode(data, type=Coverage)


def encode(coverage: Coverage) -> bytes:
    """The contents of `coverage.json`: a line for each row, so that versions compare well."""
    rows = sorted(coverage.rows, key=lambda row: (row.model_type, row.way))
    lines = ",\n".join(f"  {msgspec.json.encode(row).decode()}" for row in rows)
    head = msgspec.json.encode(coverage.transformers).decode()
    return f'{{"transformers": {head}, "rows": [\n{lines}\n]}}\n'.encode()
