"""Pace: how long a draft should be, from how often drafts were right and what calls take."""

__all__ = ["Pace"]

SIZES = (2, 4, 6, 8, 12, 16, 24, 32)
"""Tokens of a call: even, and few enough values to learn the time of each."""

FIRST_GUESS = 0.6
"""Probability that a guessed token is right, before any was seen."""

WEIGHT = 0.15
"""Of the newest token in that probability; of the newest call in its time."""

SLOPE = 0.12
"""What each token beyond two adds to the time of a call of two, as long as it was not measured."""


class Pace:
    """Chooses the length that promises most tokens in a second.

    Which length it is changes the time a text takes, and nothing else about it.
    """

    def __init__(self) -> None:
        self._right = FIRST_GUESS
        self._seconds: dict[int, float] = {}
        self._draft_seconds = 0.0

    def choose(self) -> int:
        """Tokens that the next draft should have, at least 1."""
        if 2 not in self._seconds:
            return 1
        return max(SIZES, key=self._rate) - 1

    def learn(self, *, drafted: int, right: int, draft_s: float, size: int, seconds: float) -> None:
        """Take what became of a draft.

        Args:
            drafted: tokens that were guessed.
            right: of these, the first so many that were right.
            draft_s: seconds it took to guess.
            size: tokens of the call that checked them.
            seconds: what that call took.
        """
        for guess in range(min(right + 1, drafted)):
            self._right += WEIGHT * ((guess < right) - self._right)
        if drafted:
            self._draft_seconds += WEIGHT * (draft_s / drafted - self._draft_seconds)
        size += size % 2
        known = self._seconds.setdefault(size, seconds)
        self._seconds[size] = known + WEIGHT * (seconds - known)

    def _rate(self, size: int) -> float:
        """Tokens in a second by calls of this size: the right guesses, and the one that follows."""
        tokens = sum(self._right**guess for guess in range(size))
        return tokens / (self._call_seconds(size) + (size - 1) * self._draft_seconds)

    def _call_seconds(self, size: int) -> float:
        below = max(known for known in self._seconds if known <= size)
        return self._seconds[below] + SLOPE * (size - below) * self._seconds[2]
