"""Histograms of times, in fixed buckets that suit Prometheus."""

from bisect import bisect_left

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Inclusive upper bounds of the buckets, in seconds; one more bucket holds longer times."""


class Histogram:
    """Counts of times in each bucket of `BOUNDS` and of longer ones, not cumulative."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total_s += seconds

    def merge(self, other: "Histogram") -> None:
        """Add all counts of another histogram."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s

    def copy(self) -> "Histogram":
        """A copy that later times do not change."""
        other = Histogram()
        other.merge(self)
        return other

    @property
    def count(self) -> int:
        """Number of times."""
        return sum(self.counts)
