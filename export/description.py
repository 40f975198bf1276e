"""The manifest of a bundle: what export knows of it, as data."""

from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ortolan import __version__
from ortolan.export.bundle import describe_files
from ortolan.export.options import DEVICES, Options
from ortolan.export.source import Source
from ortolan.export.store import Stored
from ortolan.export.trace import cache_names
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.manifest import Manifest, Provenance, State


def describe(folder: Path, model: Source, options: Options, stored: Stored) -> Manifest:
    """The manifest of the files that lie in a folder."""
    config = model.config
    packages = ("torch", "onnx", "onnx-ir", "onnxscript")
    return Manifest(
        schema=1,
        kind="decoder",
        precision=options.precision,
        attention=options.attention,
        devices=DEVICES[options.precision],
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        graphs=options.graph_files,
        states=_states(model, options),
        weights=(stored.blob.file.name,),
        tokens=model.tokens,
        tokenizer="tokenizer.json" if "tokenizer.json" in model.companions else None,
        certificate=runtime_certificate.JSON_NAME,
        files=describe_files(folder, (stored.blob.file,)),
        provenance=Provenance(
            source_sha256=model.sha256,
            model_type=config.model_type,
            versions={"ortolan": __version__, **{name: version(name) for name in packages}},
        ),
        prefill_precision=options.prefill_precision,
        quantized=stored.quantized,
    )


def _states(model: Source, options: Options) -> tuple[State, ...]:
    config = model.config
    dtype: Literal["float32", "float16"] = "float16" if options.precision == "fp16" else "float32"
    past, present = (cache_names(prefix, config) for prefix in ("past_key_values", "present"))
    return tuple(
        State(
            name=given.removeprefix("past_key_values."),
            input=given,
            output=taken,
            shape=("batch", attention.num_kv_heads, "capacity", attention.head_dim),
            dtype=dtype,
            update="append",
        )
        for given, taken, attention in zip(
            past,
            present,
            [block.attention for block in config.blocks for _ in range(2)],
            strict=True,
        )
    )
