"""The reference of a model after its first layers, for a publisher's model that has no more."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.proof.certificate import certify, thresholds
from ortolan.export.proof.probes import make_probes
from ortolan.export.witness.depth import first_of_each
from ortolan.modeling.models.stack import Stack
from ortolan.runtime.verification.certificate_files import write_certificate


def least_layers(model: Exportable) -> int | None:
    """Layers of the shortest beginning with one of each kind; None if there is no such thing."""
    if model.original is not None:
        return None
    if model.comparison is not None:
        return None  # the encoder of texts next to it has layers of its own
    if stacks := _stacks(model.module):
        return max(first_of_each(own.config.blocks) for own in stacks)
    # transformers itself tells its layers apart
    return 1 if model.kind == "decoder" and _lists(model.module) else None


def windows_of(model: Exportable) -> tuple[int | None, ...]:
    """Tokens that each layer of a decoder alone attends to; see `Brief.windows`."""
    stacks = _stacks(model.module) if model.kind == "decoder" else []
    return tuple(own.sliding_window for stack in stacks for own in stack.config.attentions)


def write_first_layers(folder: Path, model: Exportable, layers: int) -> None:
    """Write the certificate of the first layers to a folder, which appears when it is complete."""
    with stopped(model.module, layers):
        probes = make_probes(replace(model, features=None), None, proof="quick", windows=False)
        certificate = certify(
            model, probes, thresholds=thresholds("fp32", output=model.output_kind)
        )
    incomplete = folder.with_suffix(".incomplete")
    incomplete.mkdir()
    write_certificate(incomplete, certificate)
    incomplete.rename(folder)


@contextmanager
def stopped(module: Any, layers: int) -> Iterator[None]:
    """Make a model end after its first layers: of an encoder-decoder, on both sides."""
    with ExitStack() as undo:
        for stack in _stacks(module):
            undo.callback(setattr, stack, "config", stack.config)
            stack.config = replace(stack.config, blocks=stack.config.blocks[:layers])
            if not stack.config.shared_block:
                undo.callback(setattr, stack, "blocks", stack.blocks)
                stack.blocks = stack.blocks[:layers]
        for name, whole in {} if _stacks(module) else _lists(module).items():
            undo.callback(module.set_submodule, name, whole)
            module.set_submodule(name, whole[:layers])
        yield


def _stacks(module: nn.Module) -> list[Stack]:
    """The encoder, the decoder, or both, of Ortolan's own models."""
    return [part for part in module.modules() if isinstance(part, Stack)]


def _lists(module: Any) -> dict[str, nn.ModuleList]:
    """The lists with an item for every layer of a model of transformers."""
    if not hasattr(getattr(module, "config", None), "get_text_config"):
        return {}
    layers = module.config.get_text_config().num_hidden_layers
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == layers
    }
