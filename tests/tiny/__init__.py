"""The smallest configs of model types, as Hugging Face transformers writes them.

One for each `model_type`, for the tests of what a model computes and of what it is exported to.
Heads are 16 wide where the type allows it, so that the fused attention takes them. A config
without `architectures` is of a causal language model.
"""

from typing import Any

from tests.tiny.classics import CLASSICS
from tests.tiny.decoders import DECODERS
from tests.tiny.encoders import ENCODERS
from tests.tiny.hybrids import HYBRIDS
from tests.tiny.mixtures import MIXTURES
from tests.tiny.modern import MODERN

from ortolan.modeling.families import FAMILIES

CONFIGS: dict[str, dict[str, Any]] = {
    **CLASSICS,
    **DECODERS,
    **ENCODERS,
    **HYBRIDS,
    **MIXTURES,
    **MODERN,
}

FAMILY_CONFIGS = {name: values for name, values in CONFIGS.items() if name in FAMILIES}
"""The others go through transformers."""

OWN_FORMATS = {"recurrent"}
"""Families that transformers does not have: their format is Ortolan's own."""
