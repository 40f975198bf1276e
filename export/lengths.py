"""Which lengths of texts a bundle computes as the trained model does."""

from ortolan.export.exportable import Exportable


def context_notes(model: Exportable) -> tuple[str, ...]:
    """What a user should know of the context where rotary frequencies depend on the length."""
    last, context = model.switches_after, model.context_length
    if last is None:
        return ()
    if context > last:
        return (
            f"the trained model has other rotary frequencies for texts of more than {last} tokens "
            f"than for shorter ones. This bundle has those of a text of {context} tokens for all, "
            "so short texts differ. Export another without --max-context for them.",
        )
    if model.reach is None or model.reach <= last:
        return ()
    return (
        f"the context is {context} of {model.reach} tokens, since longer texts have other rotary "
        f"frequencies. Export another bundle with --max-context {model.reach} for long texts.",
    )
