"""Types of values that several structs of the manifest have."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ortolan.runtime import limits

Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Label = Annotated[str, Meta(min_length=1, max_length=limits.MAX_LABEL_LENGTH)]
Prompt = Annotated[str, Meta(max_length=limits.MAX_PROMPT_LENGTH)]
TokenId = Annotated[int, Meta(ge=0, lt=limits.MAX_VOCABULARY)]


class Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An object of the manifest: unknown fields are refused, and defaults are left out."""
