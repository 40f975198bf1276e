"""The first layer whose output differs, for a message about numbers that do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ortolan.export.witness.publisher import Publisher


def first_layer(
    publisher: Publisher,
    theirs_of: Callable[[], Tensor],
    *,
    source: Tensor | None = None,
    ids: Tensor | None = None,
    tolerance: float,
) -> str | None:
    """Where a model first computes other numbers than the publisher's, in words.

    Runs the reference of the certificate once more, with one weight in memory at a time. Returns
    None where no layers of the two correspond and differ.

    Args:
        publisher: with the model.
        theirs_of: runs it and returns its numbers.
        source: of the reference; see `ortolan.export.exportable.Forward`.
        ids: likewise.
        tolerance: largest difference, relative to the largest number.
    """
    # these take long to import, and few witnesses need them
    from ortolan.export.options import ExportOptions
    from ortolan.export.source import open_exportable
    from ortolan.export.streamed import Result, run

    options = ExportOptions(adapter=publisher.adapter)
    opened = open_exportable(publisher.path, options, max_context=publisher.most)
    with recorded(opened.module) as ours:
        events = run(opened.module, opened.weights, [partial(opened.forward, source, ids)])
        results = [event.value for event in events if isinstance(event, Result)]
    with recorded(publisher.stack) as theirs, torch.inference_mode():
        numbers = theirs_of()
    # the publisher's model may have the first layers alone
    if len(theirs) == len(ours) and results[0][None].shape == numbers.shape:
        ours.append(("", results[0][None]))
        theirs.append(("the head, after layers that agree", numbers))
    pairs = list(zip(ours, theirs, strict=False))
    if any(own.shape != other.shape for (_, own), (_, other) in pairs):
        return None
    for (_, own), (name, other) in pairs:
        error = (own.float() - other.float()).abs().max() / other.float().abs().max()
        if not error <= tolerance:
            return f"first at {name}"
    return None


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """Collect what enters the first layer of a model and what every layer returns."""
    outputs: list[tuple[str, Tensor]] = []

    def enter(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not outputs:
            outputs.append(("the embeddings", _first((*arguments, *named.values()))))

    def leave(name: str, _: nn.Module, __: Any, output: Any) -> None:
        outputs.append((name, _first(output if isinstance(output, tuple) else (output,))))

    with ExitStack() as hooks:
        for name, layer in layers_of(model):
            hooks.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(partial(leave, name)).remove)
        yield outputs


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a model by name: items of its lists of modules, without lists inside these."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{layer}.") for layer in layers)
        if isinstance(module, nn.ModuleList) and not is_inside:
            layers |= {f"{name}.{number}": layer for number, layer in enumerate(module)}
    return list(layers.items())


def _first(values: tuple[Any, ...]) -> Tensor:
    """The first tensor among values, which is the stream of the tokens."""
    return next(value for value in values if isinstance(value, Tensor)).detach().clone()
