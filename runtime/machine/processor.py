"""Processor features that kernels choose their code by.

Two processors with the same features lay out weights alike; others may not.
"""

import platform
from pathlib import Path

from ortolan.runtime.machine.control_groups import read_small

# x86-64, as Linux names them
_X86 = (
    "sse4_1 avx avx2 fma f16c avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 "
    "avx512_fp16 avx_vnni avx_vnni_int8 avx_ifma avx_ne_convert avx10 amx_tile amx_int8 amx_bf16"
)

_ARM = "asimd asimdhp fphp asimddp i8mm bf16 sve sve2 svei8mm svebf16 smei8i32 smef32f32 sme2"

_INSTRUCTION_SETS = {*_X86.split(), *_ARM.split()}

_FLAGS = ("flags", "Features")
"""Their names in /proc/cpuinfo, on x86-64 and on arm64."""


def processor_features(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the architecture, then the instruction sets that all cores have, sorted.

    Outside Linux, and on other architectures, the processor's name stands for its features.
    """
    by_core: list[set[str]] = []
    for line in read_small(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FLAGS:
            by_core.append(_INSTRUCTION_SETS & set(value.split()))
    if not by_core:
        return (platform.machine(), platform.processor())
    return (platform.machine(), *sorted(set.intersection(*by_core)))
