"""Ortolan and its peers: how to install them, convert a checkpoint, and run them.

To add a peer, add an entry to `PEERS` and a worker below workers/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Command = tuple[str, ...]

PRECISIONS = ("fp32", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program that generates tokens, and how to get it.

    Commands may refer to {bin}, the folder with the programs of the peer's environment,
    {checkpoint}, {model}, the output folder, and {cache}, a scratch folder. They run where
    `workers` can be imported.

    Attributes:
        name: name in tables and folder names.
        requirements: pip requirements; none uses this script's environment. constraints.txt pins
            the rest.
        without: packages to remove again after installation.
        build: environment variables for pip, for packages built from source.
        convert: conversion command per precision; empty if it loads the checkpoint directly.
        convert_random: commands for random weights, if they differ.
        options: further options of its worker, per precision.
        last_logits_only: a prompt returns logits for its last token only.
        worker: module that runs it.
        versions: packages whose versions are reported.
        reuse: keep an earlier conversion; false for code that changes in this repository.
    """

    name: str
    requirements: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    build: Mapping[str, str] = field(default_factory=dict)
    convert: Mapping[str, Command]
    convert_random: Mapping[str, Command] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last_logits_only: bool = False
    worker: str
    versions: tuple[str, ...]
    reuse: bool = True

    def command(self, precision: str, *, random: bool) -> Command:
        """The command that converts a checkpoint of trained or random weights."""
        default = self.convert[precision]
        return self.convert_random.get(precision, default) if random else default


def ortolan(name: str, precision: str, *arguments: str) -> Peer:
    """Ortolan, exporting at one precision with further arguments."""
    export = ("{bin}/ortolan", "export", "{checkpoint}", "{model}", "--precision", precision)
    return Peer(
        name=name,
        convert={precision: (*export, *arguments)},
        worker="workers.ortolan_engine",
        versions=("ortolan", "onnxruntime", "numpy"),
        reuse=False,
    )


SPLIT = ("--graphs", "split", "--prefill-precision", "int8")
# The format that calibration would choose; random weights have nothing to calibrate on.
RANDOM = ("--method", "rtn", "--head-bits", "4")

ORTOLAN = replace(
    ortolan("ortolan", "fp32"),
    convert={**ortolan("", "fp32").convert, **ortolan("", "int4").convert},
    convert_random=ortolan("", "int4", *RANDOM).convert,
)

ORTOLAN_SPLIT = replace(
    ortolan("ortolan-split", "int4", *SPLIT),
    convert_random=ortolan("", "int4", *RANDOM, *SPLIT).convert,
)

BUILDER = (
    *("{bin}/python", "-m", "onnxruntime_genai.models.builder"),
    *("-i", "{checkpoint}", "-o", "{model}", "-c", "{cache}", "-e", "cpu"),
)

GENAI = Peer(
    name="onnxruntime-genai",
    requirements=(
        "onnxruntime-genai==0.18.0",
        # Its model builder needs the others without declaring them.
        *("onnxruntime==1.32.0", "onnx", "onnx-ir", "torch", "transformers"),
    ),
    convert={precision: (*BUILDER, "-p", precision) for precision in PRECISIONS},
    worker="workers.genai",
    versions=("onnxruntime-genai", "onnxruntime"),
)

# Not its default: logits for the last position of a prompt only, like the others.
GENAI_PRUNED = replace(
    GENAI,
    name="onnxruntime-genai-pruned",
    convert={
        precision: (*command, "--extra_options", "prune_lm_head=true")
        for precision, command in GENAI.convert.items()
    },
    last_logits_only=True,
)

LLAMA_CPP = Peer(
    name="llama.cpp",
    requirements=("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy", "torch", "transformers"),
    build={
        # For this processor, through compiler flags, so that AMX can be left out: its AMX kernels
        # crash at the first prompt (0.3.36, Xeon with AMX).
        "CMAKE_ARGS": "-DGGML_NATIVE=OFF",
        **dict.fromkeys(
            ("CFLAGS", "CXXFLAGS"), "-march=native -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        ),
    },
    convert={
        precision: ("{bin}/python", "-m", "workers.to_gguf", "{checkpoint}", "{model}", kind)
        for precision, kind in (("fp32", "ALL_F32"), ("int4", "MOSTLY_Q4_0"))
    },
    worker="workers.llama",
    versions=("llama-cpp-python", "gguf"),
)

OPTIMUM = (
    *("{bin}/optimum-cli", "export", "openvino", "-m", "{checkpoint}"),
    *("--task", "text-generation-with-past", "--weight-format"),
)

OPENVINO = Peer(
    name="openvino-genai",
    requirements=(
        *("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0", "torch"),
        # The newest versions that optimum-intel accepts.
        *("transformers==5.5.4", "huggingface_hub==1.16.1", "tokenizers==0.22.2"),
    ),
    # Its wheel may be built for another PyTorch, which breaks the import of transformers, and text
    # models do not need it.
    without=("torchvision",),
    convert={
        "fp32": (*OPTIMUM, "fp32", "{model}"),
        "int4": (
            *(*OPTIMUM, "int4", "--group-size", "32", "--sym", "{model}"),
            # Matrices whose rows are not a multiple of 32 get 8 bits.
            *("--group-size-fallback", "adjust"),
        ),
    },
    # On processors with bfloat16 it would compute in bfloat16, and keep the cache in 8 bits.
    options={"fp32": ("EXECUTION_MODE_HINT=ACCURACY",)},
    worker="workers.openvino_pipeline",
    versions=("openvino-genai", "openvino", "optimum-intel", "nncf"),
)

TO_EXECUTORCH = ("{bin}/python", "-m", "workers.to_executorch", "{checkpoint}", "{model}")

EXECUTORCH = Peer(
    name="executorch",
    requirements=("executorch==1.5.1", "torch", "safetensors", "numpy"),
    convert={
        "fp32": TO_EXECUTORCH,
        # Its default of 128 leaves matrices in float32 whose rows it does not divide, silently.
        "int4": (*TO_EXECUTORCH, "32", "4,32"),
    },
    worker="workers.executorch_program",
    versions=("executorch", "torchao"),
)

TRANSFORMERS = Peer(
    name="transformers",
    requirements=("transformers", "torch"),
    convert={"fp32": ()},
    worker="workers.transformers_eager",
    versions=("transformers", "torch"),
)

PEERS = (
    ORTOLAN,
    ORTOLAN_SPLIT,
    GENAI,
    GENAI_PRUNED,
    LLAMA_CPP,
    OPENVINO,
    EXECUTORCH,
    TRANSFORMERS,
)
