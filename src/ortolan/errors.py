"""The base class of Ortolan's errors.

Subclasses are in `ortolan.modeling.errors`, `ortolan.export.errors` and `ortolan.runtime.errors`.
"""

from typing import ClassVar


class OrtolanError(Exception):
    """An error that the caller can act on: its message says what is wrong and what to do.

    Attributes:
        code: stable identifier for programs; messages may change, codes do not.
    """

    code: ClassVar[str] = "ortolan"
