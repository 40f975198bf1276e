"""The smallest config of every family, as Hugging Face transformers writes it.

One for each `model_type`, for the tests of what a family computes and of what it is exported to.
Heads are 16 wide where the family allows it, so that the fused attention takes them. A config
without `architectures` is of a causal language model.
"""

from typing import Any

from tests.tiny.classics import CLASSICS
from tests.tiny.decoders import DECODERS
from tests.tiny.encoders import ENCODERS
from tests.tiny.hybrids import HYBRIDS
from tests.tiny.mixtures import MIXTURES
from tests.tiny.modern import MODERN

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    **CLASSICS,
    **DECODERS,
    **ENCODERS,
    **HYBRIDS,
    **MIXTURES,
    **MODERN,
}

OWN_FORMATS = {"recurrent"}
"""Families that transformers does not have: their format is Ortolan's own."""
