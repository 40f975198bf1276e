"""Settings that quality.py measures: every way to shrink a model with a row in its table.

To add a row, add an entry here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from catalog import GENAI, LLAMA_CPP, OPENVINO, OPTIMUM, ORTOLAN, Peer, ortolan


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of the table and a point of the chart.

    Attributes:
        tool: tool; a line joins its points.
        label: label of the point.
        precision: precision, as the peer names it.
        peer: how to convert and run the model.
        bundle: an existing model; by default the checkpoint is converted.
    """

    tool: str
    label: str
    precision: str
    peer: Peer
    bundle: Path | None = None

    @property
    def name(self) -> str:
        """Name for selection and messages."""
        return f"{self.tool} {self.label}"


def point(tool: str, label: str, peer: Peer, *command: str, precision: str = "int4") -> Setting:
    """A peer with its own conversion command."""
    # Also the name of a folder, so that variants of a peer do not overwrite each other.
    name = f"{tool} {label}".replace(" ", "-")
    named = replace(peer, name=name, convert={precision: command})
    return Setting(tool=tool, label=label, precision=precision, peer=named)


def ours(line: str, label: str, *arguments: str, precision: str = "int4") -> Setting:
    """Ortolan, exporting with some arguments, on the plain line or one of its own."""
    tool = f"ortolan {line}".rstrip()
    # Low-quality bundles are rows too.
    peer = ortolan("ortolan", precision, *arguments, "--allow-poor")
    return point(tool, label, peer, *peer.convert[precision], precision=precision)


def sized(line: str, megabytes: int, *arguments: str) -> Setting:
    """Ortolan, choosing 4 or 8 bits for each weight by a size of all."""
    size = ("--target-size", str(megabytes))
    return ours(line, f"{megabytes} MB", *size, *arguments, precision="auto")


def groups(line: str, *arguments: str) -> tuple[Setting, ...]:
    """A line of Ortolan's with one point per group size."""
    return tuple(
        ours(line, f"g{size}", "--group-size", str(size), *arguments) for size in GROUP_SIZES
    )


def gguf(kind: str, *texts: str) -> Setting:
    """A quantization type of llama.cpp, with an importance matrix if there are texts for it."""
    convert = (*LLAMA_CPP.convert["fp32"][:-1], f"MOSTLY_{kind}", *texts)
    tool = "llama.cpp imatrix" if texts else "llama.cpp"
    return point(tool, kind, LLAMA_CPP, *convert)


def nncf(label: str, *arguments: str) -> Setting:
    """OpenVINO's int4 with some arguments."""
    # Without the last, rows that are not a multiple of the group size are rejected.
    last = ("--group-size-fallback", "adjust")
    return point("openvino", label, OPENVINO, *OPTIMUM, "int4", "{model}", *arguments, *last)


GROUP_SIZES = (32, 64, 128, 256)

SIZES = (80, 87, 95, 103, 110, 118, 130)
"""Sizes of weights in MB to choose bits for, about those of SmolLM2 135M elsewhere."""

IMPORTANCE = tuple(f"/usr/share/games/fortunes/{name}" for name in ("literature", "science"))
"""English for importance matrices, from Debian's package fortunes."""

GGUF = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")

SETTINGS = (
    *(
        point(tool, "fp32", peer, *peer.convert["fp32"], precision="fp32")
        for tool, peer in (
            ("ortolan", ORTOLAN),
            ("onnxruntime-genai", GENAI),
            ("llama.cpp", LLAMA_CPP),
            ("openvino", OPENVINO),
        )
    ),
    ours("", "int8", precision="int8"),
    ours("", "int4"),
    *(ours("effort", effort, "--effort", effort) for effort in ("quick", "normal", "best")),
    ours("auto", "KL 0.05", "--max-kl", "0.05", precision="auto"),
    *(sized("auto", mb) for mb in SIZES),
    *(sized("auto best", mb, "--effort", "best") for mb in SIZES),
    ours("split", "int4", "--graphs", "split", "--prefill-precision", "int8"),
    *groups("rtn", "--method", "rtn", "--head-bits", "8"),
    *groups("gptq", "--method", "gptq", "--head-bits", "8"),
    *groups("gptq head 4", "--method", "gptq", "--head-bits", "4"),
    point("onnxruntime-genai", "int4", GENAI, *GENAI.convert["int4"]),
    *(gguf(kind) for kind in GGUF),
    *(gguf(kind, *IMPORTANCE) for kind in GGUF[:4]),
    nncf("int4"),
    *(
        nncf(f"g{size} {form}", "--group-size", str(size), *arguments)
        for size in (32, 64)
        for form, arguments in (("sym", ("--sym",)), ("asym", ()))
    ),
)


def standing(folder: Path) -> Setting:
    """An existing Ortolan bundle."""
    peer = replace(ORTOLAN, name=f"bundle-{folder.name}", convert={"int4": ()})
    return Setting(tool="bundle", label=folder.name, precision="int4", peer=peer, bundle=folder)


def chosen(patterns: Sequence[str], settings: Sequence[Setting]) -> list[Setting]:
    """Settings whose tool is named or whose name matches; all without patterns.

    Raises:
        ValueError: a pattern matches no setting.
    """
    selected = []
    for pattern in patterns:
        matching = [s for s in settings if s.tool == pattern or fnmatch(s.name, pattern)]
        if not matching:
            names = ", ".join(setting.name for setting in settings)
            raise ValueError(f"--only: {pattern} matches none of {names}.")
        selected += matching
    return [setting for setting in settings if not patterns or setting in selected]
