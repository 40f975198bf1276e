"""A session of onnxruntime whose failures are Ortolan's."""

from typing import Any

from ortolan.runtime.errors import ComputeError, MissingExtraError

try:
    import onnxruntime as ort  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError(
        "ortolan.runtime: expected the package onnxruntime, got none. "
        'Run: pip install "ortolan[cpu]"'
    ) from error

__all__ = ["CheckedSession", "ort"]


class CheckedSession(ort.InferenceSession):  # type: ignore[misc]
    """Raises `ComputeError` where a kernel refuses what it is given.

    onnxruntime's own classes of errors have no common base, and a user of a bundle need not know
    them. What a run had to write is undefined after one.
    """

    def run(self, *args: Any) -> Any:
        """Compute outputs from inputs."""
        try:
            return super().run(*args)
        except Exception as error:
            raise _failed(error) from error

    def run_with_iobinding(self, *args: Any) -> None:
        """Compute from bound buffers into bound buffers."""
        try:
            super().run_with_iobinding(*args)
        except Exception as error:
            raise _failed(error) from error


def _failed(error: Exception) -> ComputeError:
    return ComputeError(
        f"model: expected onnxruntime {ort.__version__} to compute it, got: "
        f"{str(error).partition(chr(10))[0][:300]}. If `ortolan verify` passes on the bundle, "
        "memory is short; otherwise export it again."
    )
