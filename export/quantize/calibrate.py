"""Codes that keep what a model computes on its inputs, found a layer at a time.

The streams that enter a layer are computed by the layers before it as they are stored, so that a
layer makes up for the errors of those before it (Frantar et al. 2022, "GPTQ", section 3). The
decoder of an encoder-decoder reads what the encoder gives as it is stored.

Memory: the streams, one layer's weights, and what `gptq.factorize` needs for its widest product.

Shape letters: S tokens of a text, E model width, K columns of a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, Scheme, dequantize
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_rows, row_chunks
from ortolan.export.source.exportable import Exportable
from ortolan.export.source.inputs import Inputs
from ortolan.export.source.layers import Layers, stacks
from ortolan.modeling.layers.heads import LanguageModel
from ortolan.modeling.weights import EMBEDDING, read_weight
from ortolan.runtime.machine.memory import return_free_memory

TIED_DAMPING = 0.5
"""Of a head that is the embedding as well: there, errors count the same in every column."""


def calibrated_weights(
    model: Exportable,
    plan: Mapping[str, Scheme],
    inputs: Inputs,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[QuantizedWeight]:
    """Every weight of a plan, by GPTQ; an embedding that is no head is rounded.

    Args:
        model: the model; its weights are read a layer at a time.
        plan: which weights, and how.
        inputs: what to calibrate on.
        progress: told after every layer.

    Yields:
        Each weight once; read its parts before the next weight.
    """
    sides = stacks(model)
    done, total = 0, sum(map(len, sides))
    found: set[str] = set()
    streams: list[Tensor] = []
    sources: list[Tensor] | None = None
    for layers in sides:
        with torch.inference_mode():
            streams = layers.embed(inputs.sources if layers.is_encoder else inputs.ids)
        for index in range(len(layers)):
            for quantized in _round_layer(layers, index, streams, sources, plan):
                found.add(quantized.name)
                yield quantized
            return_free_memory()
            done += 1
            if progress is not None:
                progress(done, total)
        with torch.inference_mode():
            streams = sources = [layers.run_final_norm(x_SE) for x_SE in streams]
    for quantized in _round_head(sides[-1], streams, plan):
        found.add(quantized.name)
        yield quantized
    for name, scheme in plan.items():
        if name not in found:
            parts = round_rows(model.weights, name, scheme, "rtn")
            yield QuantizedWeight(name=name, scheme=scheme, method="rtn", parts=parts)


def _below(plan: Mapping[str, Scheme], prefix: str) -> dict[str, Scheme]:
    """The part of a plan whose names begin like this, by what follows."""
    return {
        name.removeprefix(prefix): scheme
        for name, scheme in plan.items()
        if name.startswith(prefix)
    }


def _round_layer(
    layers: Layers,
    index: int,
    streams: list[Tensor],
    sources: Sequence[Tensor] | None,
    plan: Mapping[str, Scheme],
) -> Iterator[QuantizedWeight]:
    """The codes of every product of a layer; the streams become what leaves it as stored."""
    layer = layers.read(index)
    schemes = _below(plan, layers.place(index))

    def run(place: int) -> Tensor:
        source = None if sources is None else [sources[place]]
        return layers.run(index, layer, [streams[place]], source)[0]

    def run_all() -> None:
        for place in range(len(streams)):
            run(place)

    codes = _round_products(layers.stack.blocks[index], layer, schemes, run_all)
    for name, scheme in schemes.items():
        weight = f"{layers.place(index)}{name}"
        # Read once more: while the codes were found, there was no room to keep it.
        parts = iter([Part(rows=read_weight(layers.weights, weight), codes=codes[name])])
        yield QuantizedWeight(name=weight, scheme=scheme, method="gptq", parts=parts)
        layer[name] = dequantize(codes[name])
    with torch.inference_mode():
        # One text at a time, each in the place of what it was.
        for place in range(len(streams)):
            streams[place] = run(place)


def _round_head(
    layers: Layers, streams: Sequence[Tensor], plan: Mapping[str, Scheme]
) -> Iterator[QuantizedWeight]:
    """The codes of the products after the blocks."""
    product = layers.logits_product()
    yield from _round_small_head(layers, streams, plan, None if product is None else product.weight)
    if product is None or product.weight not in plan:
        return
    with torch.inference_mode():
        x_SE = layers.run_transform(torch.cat(list(streams))) * product.scale
        is_table = product.weight == layers.name(EMBEDDING)
        damping = TIED_DAMPING if is_table else gptq.DAMPING
        factor = gptq.factorize(x_SE.T @ x_SE, damping=damping)
    scheme = plan[product.weight]
    parts = (
        Part(rows=rows, codes=_round(rows, factor, scheme))
        for rows in row_chunks(layers.weights, product.weight)
    )
    yield QuantizedWeight(name=product.weight, scheme=scheme, method="gptq", parts=parts)


def _round_small_head(
    layers: Layers, streams: Sequence[Tensor], plan: Mapping[str, Scheme], output: str | None
) -> Iterator[QuantizedWeight]:
    """Those of a classifier, or before the last product of an encoder's language model."""
    head, prefix = layers.stack.head, f"{layers.prefix}head."
    schemes = {f"{prefix}{name}": scheme for name, scheme in _below(plan, prefix).items()}
    names = [name for name in schemes if name != output]
    if not names or not isinstance(head, nn.Module):
        return
    run = layers.run_transform if isinstance(head, LanguageModel) else layers.run_pooled_head

    def run_all() -> None:
        for x_SE in streams:
            run(x_SE)

    codes = _round_products(
        head,
        {name.removeprefix(prefix): read_weight(layers.weights, name) for name in names},
        {name.removeprefix(prefix): schemes[name] for name in names},
        run_all,
    )
    for name in names:
        rows = read_weight(layers.weights, name)
        parts = iter([Part(rows=rows, codes=codes[name.removeprefix(prefix)])])
        yield QuantizedWeight(name=name, scheme=schemes[name], method="gptq", parts=parts)


def _round_products(
    module: nn.Module,
    weights: dict[str, Tensor],
    schemes: Mapping[str, Scheme],
    run: Callable[[], None],
) -> dict[str, Codes]:
    """The codes of every product of a module, whose weights are taken out one by one."""
    hessians, leaders = _hessians(module, schemes, run)
    found = {}
    leader, factor = "", None
    for name, scheme in schemes.items():
        if factor is None or leaders[name] != leader:
            leader, factor = leaders[name], None
            return_free_memory()
            factor = gptq.factorize(hessians.pop(leader))
        found[name] = _round(weights.pop(name), factor, scheme)
    return found


def _round(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Codes:
    return refine(weight, gptq.round_columns(weight, factor, scheme), factor)


def _hessians(
    module: nn.Module, names: Iterable[str], run: Callable[[], None]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The sum of x xT over the inputs x `(K,)` of the products of a module, `(K, K)`.

    Args:
        module: that holds them.
        names: of their weights.
        run: the module over all that is calibrated on.

    Returns:
        The sums, and for each product the name of the one whose sum is its own: products that
        read the same inputs share one.
    """
    sums: dict[str, Tensor] = {}
    leaders: dict[str, str] = {}
    newest: list[tuple[str, Tensor]] = []

    def watch(name: str) -> torch.utils.hooks.RemovableHandle:
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name not in leaders:
                shares = bool(newest) and newest[-1][1] is inputs[0]
                leaders[name] = leaders[newest[-1][0]] if shares else name
                newest[:] = [(name, inputs[0])]
            if leaders[name] == name:
                x_SK = inputs[0].flatten(0, -2)
                if name not in sums:
                    sums[name] = torch.zeros(2 * [x_SK.shape[1]])
                sums[name].addmm_(x_SK.T, x_SK)

        return module.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(add)

    handles = [watch(name) for name in names]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return sums, leaders
