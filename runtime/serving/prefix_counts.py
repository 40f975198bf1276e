"""What a prefix cache has done."""

from dataclasses import dataclass

__all__ = ["PrefixCounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCounts:
    """What a prefix cache has done, and what it holds.

    Attributes:
        prompts: that were looked up.
        hits: of these, how many began with a known block.
        tokens: that did not have to be computed.
        blocks: in memory now.
        bytes: of these blocks.
        evicted: blocks that made room for others.
        read: blocks that came from files.
    """

    prompts: int = 0
    hits: int = 0
    tokens: int = 0
    blocks: int = 0
    bytes: int = 0
    evicted: int = 0
    read: int = 0
