"""What few exports change: the value of `ortolan.export(options=...)`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]
Graphs = Literal["unified", "split"]
Attention = Literal["fused", "portable"]
Cache = Literal["float", "int8"]
Proof = Literal["quick", "full"]
Via = Literal["family", "transformers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Graphs, bounds and files of an export.

    Attributes:
        graphs: one graph for every step, or one for prefill and one for decoding.
        attention: `portable` adds bodies of standard operators, for other tools than onnxruntime.
        prefill_precision: products of 8-bit integers for prefill alone, or in all of an encoder.
        cache: how a decoder keeps keys and values: as it computes them, or in 8 bits.
        attention_maps: write a graph of what each token attends to.
        allow_cpu_nodes: let the CPU compute what the device has no kernel for.
        max_kl: fail where the mean divergence from PyTorch is larger; None for the bound of the
            precision.
        allow_poor: keep a bundle of rounded weights however far it is from the trained model.
        proof: `quick` proves every weight by itself and the whole model on short probes; `full`
            on more and longer ones as well.
        tokenizer: a tokenizer.json; None for the checkpoint's own.
        via: how to open a checkpoint: as one of our families, or by transformers; None for a family
            where there is one.
        accept_unknown: keys of config.json to ignore although nothing is known of them. What they
            change is not seen by the certificate, whose reference ignores them as well.
        adapter: a folder of PEFT to merge into the checkpoint.
    """

    graphs: Graphs = "unified"
    attention: Attention = "fused"
    prefill_precision: Literal["int8"] | None = None
    cache: Cache = "float"
    attention_maps: bool = False
    allow_cpu_nodes: bool = False
    max_kl: float | None = None
    allow_poor: bool = False
    proof: Proof = "quick"
    tokenizer: str | Path | None = None
    accept_unknown: tuple[str, ...] = ()
    via: Via | None = None
    adapter: str | Path | None = None


DEFAULTS = ExportOptions()
