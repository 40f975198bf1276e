"""Which model types can be exported, through which path, and their measured error.

`scripts/families_table.py` exports a tiny model of each type, compares the bundle with
transformers, and writes `coverage.json`.
"""

from importlib.resources import files
from typing import get_args

import msgspec

from ortolan.export.options import Via

DATA = "coverage.json"

BOUND = 1e-4
"""Largest error of a supported type, relative to the largest logit."""

WAYS: tuple[Via, ...] = get_args(Via)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of one model type through one path.

    Attributes:
        error: largest difference from transformers in fp32, relative to its largest output; None
            without a bundle.
        tokens_equal: whether greedy generation returns the same tokens as transformers; None for
            an encoder.
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
        """Whether the bundle agrees with transformers."""
        return self.error is not None and self.error <= BOUND and self.tokens_equal is not False


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows, sorted by model type and way, and the version of transformers they compare with."""

    transformers: str
    rows: tuple[Row, ...]

    def counts(self) -> dict[Via, int]:
        """Number of supported types per path."""
        return {way: sum(r.supported for r in self.rows if r.way == way) for way in WAYS}

    def of(self, model_type: str) -> tuple[Row, ...]:
        """Rows of one model type."""
        return tuple(row for row in self.rows if row.model_type == model_type)


def read_coverage() -> Coverage:
    """Measurements of this version."""
    return decode(files("ortolan.export").joinpath(DATA).read_bytes())


def decode(data: bytes) -> Coverage:
    """Decode `coverage.json`."""
    return msgspec.json.decode(data, type=Coverage)


def encode(coverage: Coverage) -> bytes:
    """Encode `coverage.json`, one row per line so that diffs stay small."""
    rows = sorted(coverage.rows, key=lambda row: (row.model_type, row.way))
    lines = ",\n".join(f"  {msgspec.json.encode(row).decode()}" for row in rows)
    head = msgspec.json.encode(coverage.transformers).decode()
    return f'{{"transformers": {head}, "rows": [\n{lines}\n]}}\n'.encode()
