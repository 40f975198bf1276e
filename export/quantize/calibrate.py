"""Codes that keep what a model computes on a text, found a layer at a time.

The streams that enter a layer come out of the layers before it as they are stored, so that a
layer makes up for the errors of those before it (Frantar et al. 2022, "GPTQ", section 3).

Memory: the streams, one layer's weights, and what `gptq.factorize` needs for its widest product.

Shape letters: S tokens of a text, E model width, K columns of a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ortolan.export.layers import (
    embed,
    head_name,
    read_layer,
    run_block,
    run_final_norm,
    skeleton,
)
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, Scheme, dequantize
from ortolan.export.quantize.stream import Part, Quantized, round_rows, row_chunks
from ortolan.modeling import Decoder, TransformerConfig
from ortolan.modeling.weights import EMBEDDING, Weights, read_weight
from ortolan.runtime.process_memory import return_free_memory

TIED_DAMPING = 0.5
"""Of a head that is the embedding as well: there, errors count the same in every column."""


def calibrated_weights(
    config: TransformerConfig,
    weights: Weights,
    tables: Mapping[str, Tensor],
    plan: Mapping[str, Scheme],
    texts: Sequence[Tensor],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Quantized]:
    """Every weight of a plan, by GPTQ; an embedding that is no head is rounded.

    Args:
        config: the model.
        weights: its weights, read a layer at a time.
        tables: its fixed tables.
        plan: which weights, and how.
        texts: ids `(S,)` of each text to calibrate on.
        progress: told after every layer.

    Yields:
        Each weight once; its parts are to be read before the next is asked for.
    """
    module = skeleton(config, tables)
    with torch.inference_mode():
        streams = embed(module, weights, texts)
    head = head_name(module)
    count = len(module.blocks)
    for index in range(count):
        prefix = f"blocks.{index}."
        layer = read_layer(module, weights, prefix)
        schemes = {
            name.removeprefix(prefix): scheme
            for name, scheme in plan.items()
            if name.startswith(prefix)
        }
        found = _round_layer(module, index, layer, streams, schemes)
        for name, codes in found.items():
            weight = f"{prefix}{name}"
            # Read once more: while the codes were found, there was no room to keep it.
            parts = iter([Part(rows=read_weight(weights, weight), codes=codes)])
            yield Quantized(name=weight, scheme=schemes[name], method="gptq", parts=parts)
            layer[name] = dequantize(codes)
        with torch.inference_mode():
            # One text at a time, each in the place of what it was.
            for place, x_SE in enumerate(streams):
                streams[place] = run_block(module, index, layer, [x_SE])[0]
        del layer, found
        return_free_memory()
        if progress is not None:
            progress(index + 1, count)
    for name, scheme in plan.items():
        if name == head:
            parts = _calibrated_head(module, weights, name, scheme, streams)
            yield Quantized(name=name, scheme=scheme, method="gptq", parts=parts)
        elif not name.startswith("blocks."):
            parts = round_rows(weights, name, scheme, "rtn")
            yield Quantized(name=name, scheme=scheme, method="rtn", parts=parts)


def _round_layer(
    module: Decoder,
    index: int,
    layer: dict[str, Tensor],
    streams: Sequence[Tensor],
    schemes: Mapping[str, Scheme],
) -> dict[str, Codes]:
    """The codes of every product of a layer, whose weights are taken out of it one by one."""
    hessians, leaders = _hessians(module, index, layer, streams, schemes)
    found = {}
    leader, factor = "", None
    for name, scheme in schemes.items():
        if factor is None or leaders[name] != leader:
            leader, factor = leaders[name], None
            factor = gptq.factorize(hessians.pop(leader))
            return_free_memory()
        found[name] = gptq.round_columns(layer.pop(name), factor, scheme)
    return found


def _hessians(
    module: Decoder,
    index: int,
    layer: dict[str, Tensor],
    streams: Sequence[Tensor],
    names: Iterable[str],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The sum of x xT over the inputs x `(K,)` of the products of a layer, `(K, K)`.

    Returns:
        The sums, and for each product the name of the one whose sum is its own: products that
        read the same inputs share one.
    """
    sums: dict[str, Tensor] = {}
    leaders: dict[str, str] = {}
    newest: list[tuple[str, Tensor]] = []
    block = module.blocks[index]

    def watch(name: str) -> torch.utils.hooks.RemovableHandle:
        def add(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name not in leaders:
                shares = bool(newest) and newest[-1][1] is inputs[0]
                leaders[name] = leaders[newest[-1][0]] if shares else name
                newest[:] = [(name, inputs[0])]
            if leaders[name] == name:
                x_SK = inputs[0].flatten(0, -2)
                if name not in sums:
                    sums[name] = torch.zeros(2 * [x_SK.shape[1]])
                sums[name].addmm_(x_SK.T, x_SK)

        return block.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(add)

    handles = [watch(name) for name in names]
    try:
        with torch.no_grad():
            for x_SE in streams:
                run_block(module, index, layer, [x_SE])
    finally:
        for handle in handles:
            handle.remove()
    return sums, leaders


def _calibrated_head(
    module: Decoder, weights: Weights, name: str, scheme: Scheme, streams: Sequence[Tensor]
) -> Iterator[Part]:
    with torch.inference_mode():
        x_SE = run_final_norm(module, weights, torch.cat(list(streams)))
        damping = TIED_DAMPING if name == EMBEDDING else gptq.DAMPING
        factor = gptq.factorize(x_SE.T @ x_SE, damping=damping)
    for rows in row_chunks(weights, name):
        yield Part(rows=rows, codes=gptq.round_columns(rows, factor, scheme))
