"""What a generator asks of a cache of prompts."""

from collections.abc import Sequence
from typing import Protocol

from ortolan.runtime.engine.slots import Slots

__all__ = ["Ends", "Prefixes"]


class Prefixes(Protocol):
    """Keeps what was computed for prompts, for others that begin with the same tokens.

    Both methods copy: states that `append` have their valid part in `Slots.bound`, states that
    `replace` are there as they are after `slots.lengths[row]` tokens. Of an exact generator what is
    kept was computed by exact parts of prompts alone, and never by steps: so a prompt that begins
    with it gives what it would give without, to the bit.
    """

    @property
    def grid(self) -> int:
        """Tokens; beginnings end at multiples of it."""

    def fetch(self, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Put the longest kept beginning of a prompt into a row that is empty.

        It writes the states and `slots.lengths[row]`; the capacity is there.

        Returns:
            Tokens that the row has now: 0 or a multiple of `grid`, and fewer than `len(ids)`, since
            the logits after the last one have to be computed.
        """

    def offer(self, ids: Sequence[int], slots: Slots, row: int, tokens: int) -> None:
        """Keep, or not, the first tokens of a prompt, which have just been computed in a row.

        It is called whenever a part of a prompt has completed a block of `grid` tokens, or several.

        Args:
            ids: the whole prompt.
            slots: with states that are replaced, `slots.lengths[row] == tokens`.
            row: holds at least `tokens` tokens.
            tokens: a multiple of `grid`, and more than at the last call for this row.
        """


class Ends(Protocol):
    """Keeps what follows the last whole block of a conversation's prompt, for its next one."""

    def fetch_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Put what is kept and shared after the tokens of a row, which `Prefixes.fetch` filled.

        Returns:
            Tokens that the row has now, fewer than `len(ids)`.
        """

    def offer_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> None:
        """Keep, or not, what follows the last whole block of a prompt, all of it in a row."""
