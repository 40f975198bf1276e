"""Ortolan and its peers: where each comes from, how it converts a checkpoint, and who runs it.

A new peer is one more entry of `PEERS` and one more worker below workers/.
Does not install, convert or measure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Command = tuple[str, ...]

PRECISIONS = ("fp32", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program that generates tokens, and how to get it.

    A command may name {bin}, the folder with the programs of the peer's environment,
    {checkpoint}, {model}, the folder to write, and {cache}, a folder for scratch files. It runs
    where `workers` can be imported.

    Attributes:
        name: as it stands in tables and folder names.
        requirements: what pip installs for it; none means the environment of this script.
            constraints.txt pins whatever is not pinned here.
        without: packages that pip brings along and that are removed again.
        build: environment variables for pip, where something is built from source.
        convert: the command for each precision that it has. An empty one: it loads the
            checkpoint itself.
        convert_random: the commands for random weights, where they are others.
        options: what its worker is told at a precision, besides model and threads.
        last_logits_only: whether a prompt gives logits for its last token alone.
        worker: the module that runs it.
        versions: the packages whose versions belong to a result.
        reuse: whether a model converted earlier still holds; not for code that changes here.
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
        """Return the command that converts a checkpoint of learned or of random weights."""
        usual = self.convert[precision]
        return self.convert_random.get(precision, usual) if random else usual


def ortolan(name: str, precision: str, *arguments: str) -> Peer:
    """Return Ortolan as it exports at one precision with some more arguments."""
    export = ("{bin}/ortolan", "export", "{checkpoint}", "{model}", "--precision", precision)
    return Peer(
        name=name,
        convert={precision: (*export, *arguments)},
        worker="workers.ortolan_engine",
        versions=("ortolan", "onnxruntime", "numpy"),
        reuse=False,
    )


SPLIT = ("--graphs", "split", "--prefill-precision", "int8")
# The format that calibration would give; it has nothing to learn from random weights.
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
        # Its model builder needs these and does not declare them.
        *("onnx", "onnx-ir", "onnxruntime", "torch", "transformers"),
    ),
    convert={precision: (*BUILDER, "-p", precision) for precision in PRECISIONS},
    worker="workers.genai",
    versions=("onnxruntime-genai", "onnxruntime"),
)

# Not its default: logits for the last position of a prompt alone, as the others do.
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
    requirements=("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy"),
    build={
        # For this processor, not for any: by the compiler's own flags, so that AMX can be left out.
        # Its kernels for that end the process at the first prompt (0.3.36, Xeon with AMX).
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
        # The newest that optimum-intel accepts.
        *("transformers==5.5.4", "huggingface_hub==1.16.1", "tokenizers==0.22.2"),
    ),
    # Its wheel may be built for another PyTorch, transformers then fails to import, and no model
    # of text needs it.
    without=("torchvision",),
    convert={
        "fp32": (*OPTIMUM, "fp32", "{model}"),
        "int4": (
            *(*OPTIMUM, "int4", "--group-size", "32", "--sym", "{model}"),
            # A matrix whose rows are no multiple of 32 gets 8 bits.
            *("--group-size-fallback", "adjust"),
        ),
    },
    # Where the processor has bfloat16, it would compute in that, and keep the cache in 8 bits.
    options={"fp32": ("EXECUTION_MODE_HINT=ACCURACY",)},
    worker="workers.openvino_pipeline",
    versions=("openvino-genai", "openvino", "optimum-intel", "nncf"),
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
    TRANSFORMERS,
)
