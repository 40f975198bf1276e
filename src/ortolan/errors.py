"""The root of every error that Ortolan raises on purpose.

Each room draws its own tree below this class: `ortolan.modeling.errors`,
`ortolan.export.errors`, `ortolan.runtime.errors`.
"""

from typing import ClassVar


class OrtolanError(Exception):
    """Something that the caller can act on.

    The message says what failed, what was expected, what was got and what to do.

    Attributes:
        code: a stable identifier for programs; messages may change, codes do not.
    """

    code: ClassVar[str] = "ortolan"
