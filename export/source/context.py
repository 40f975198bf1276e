"""Warnings where the trained model computes longer texts in another way."""

from ortolan.modeling.config import EncoderConfig, LearnedPositions, ModelConfig


def context_notes(
    context: int, *, switches_after: int | None, reach: int | None
) -> tuple[str, ...]:
    """Warnings about a context.

    Args:
        context: longest context of the bundle, in tokens.
        switches_after: see `Exportable`.
        reach: longest context of the trained model.
    """
    last = switches_after
    if last is None:
        return ()
    if context > last:
        return (
            f"The trained model changes its rotary frequencies after {last} tokens. This bundle "
            f"uses those of a text of {context} tokens throughout, so short texts differ. For "
            "them, export another bundle without --max-context.",
        )
    if reach is None or reach <= last:
        return ()
    return (
        f"The context is {context} of {reach} tokens, since longer texts have other rotary "
        f"frequencies. For them, export another bundle with --max-context {reach}.",
    )


def sparse_notes(config: ModelConfig) -> tuple[str, ...]:
    """A warning where the table of positions is longer than the context."""
    if not isinstance(config, EncoderConfig) or not isinstance(config.positions, LearnedPositions):
        return ()
    context, spare = config.context_length, config.positions.spare
    if not spare:
        return ()
    return (
        f"The context is {context} of {context + spare} tokens, since the trained model attends to "
        "a part of longer texts only.",
    )
