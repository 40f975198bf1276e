"""The reference of a decoder after its first layers, for a publisher's model that has no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.proof.certificate import certify, thresholds
from ortolan.export.proof.probes import make_probes
from ortolan.export.witness.depth import first_of_each
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.runtime.verification.certificate_files import write_certificate


def least_layers(model: Exportable) -> int | None:
    """Layers of the shortest beginning with one of each kind; None if there is no such thing."""
    module: Any = model.module
    if model.kind != "decoder" or model.output is not None or model.original is not None:
        return None
    if isinstance(module, DecoderModel):
        return first_of_each(module.config.blocks)
    return 1 if _lists(module) else None  # transformers itself tells its layers apart


def write_first_layers(folder: Path, model: Exportable, layers: int) -> None:
    """Write the certificate of the first layers to a folder, which appears when it is complete."""
    with stopped(model.module, layers):
        probes = make_probes(replace(model, features=None), None, proof="quick", windows=False)
        certificate = certify(model, probes, thresholds=thresholds("fp32"))
    incomplete = folder.with_suffix(".incomplete")
    incomplete.mkdir()
    write_certificate(incomplete, certificate)
    incomplete.rename(folder)


@contextmanager
def stopped(module: Any, layers: int) -> Iterator[None]:
    """Make a decoder end after its first layers."""
    config = module.config
    lists: dict[str, nn.ModuleList]
    if isinstance(module, DecoderModel):
        lists = {} if config.shared_block else {"blocks": module.blocks}
        module.config = replace(config, blocks=config.blocks[:layers])
    else:
        lists = _lists(module)
    for name, whole in lists.items():
        module.set_submodule(name, whole[:layers])
    try:
        yield
    finally:
        module.config = config
        for name, whole in lists.items():
            module.set_submodule(name, whole)


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
