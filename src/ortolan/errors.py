"""The base class of Ortolan's errors.

Subclasses are in `ortolan.modeling.errors`, `ortolan.export.errors` and `ortolan.runtime.errors`.
"""

from typing import Any, ClassVar


class OrtolanError(Exception):
    """An error that the caller can act on: its message says what is wrong and what to do.

    Attributes:
        code: stable identifier for programs; messages may change, codes do not.
    """

    code: ClassVar[str] = "ortolan"

    def __init_subclass__(cls, code: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if code is not None:
            cls.code = code


class RuntimeOnlyError(OrtolanError, ImportError, code="runtime-only"):
    """`ortolan-runtime` is installed, and this needs the distribution `ortolan`.

    Attributes:
        extra: the extra of `ortolan` that contains it.
    """

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} is not part of ortolan-runtime, which only runs bundles. Run: "
            f'pip uninstall ortolan-runtime && pip install "ortolan[{extra}]"'
        )
        self.extra = extra
