"""What the attention kernel of onnxruntime cannot take, found before any work is done.

Source: com.microsoft.GroupQueryAttention, version 1, as onnxruntime 1.31 checks it on the CPU.
"""

from ortolan.export.errors import ExportError
from ortolan.modeling import TransformerConfig
from ortolan.modeling.config import RotaryPositions


def check_kernels(config: TransformerConfig) -> None:
    """Check that every layer's attention has a kernel.

    Raises:
        ExportError: names the first layer that has none.
    """
    rotated = config.positions.dim if isinstance(config.positions, RotaryPositions) else 0
    multiple = 16 if rotated else 8
    for number, block in enumerate(config.blocks):
        width = block.attention.head_dim
        if width % multiple or rotated % 16:
            kind = "heads, and channels rotated," if rotated else "heads"
            raise ExportError(
                f"layer {number}: expected {kind} in multiples of {multiple}, got heads of {width}"
                f"{f' with {rotated} channels rotated' if rotated else ''}. "
                "onnxruntime has no attention kernel for this model."
            )
