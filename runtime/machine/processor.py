"""The processor, as far as kernels choose their code by it.

Which of the instruction sets a kernel uses is not known: two processors with
the same list lay weights out alike, and two with different ones may not.
"""

import platform
from pathlib import Path

from ortolan.runtime.machine.control_groups import read_small

__all__ = ["processor_features"]

# x86-64, as Linux names them
_X86 = (
    "sse4_1 avx avx2 fma f16c avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 "
    "avx512_fp16 avx_vnni avx_vnni_int8 avx_ifma avx_ne_convert avx10 amx_tile amx_int8 amx_bf16"
)

_ARM = "asimd asimdhp fphp asimddp i8mm bf16 sve sve2 svei8mm svebf16 smei8i32 smef32f32 sme2"

_INSTRUCTION_SETS = {*_X86.split(), *_ARM.split()}

_FLAGS = ("flags", "Features")
"""How /proc/cpuinfo calls them on x86-64, and on arm64."""


def processor_features(root: Path = Path("/")) -> tuple[str, ...]:
    """The architecture, then the instruction sets that kernels choose by, sorted.

    Where cores differ, those that all of them have: a thread may run on any. Outside Linux, and
    on other architectures, the name of the processor stands for them.
    """
    found: list[set[str]] = []
    for line in read_small(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FLAGS:
            found.append(_INSTRUCTION_SETS & set(value.split()))
    if not found:
        return (platform.machine(), platform.processor())
    return (platform.machine(), *sorted(set.intersection(*found)))
