"""Parameters of a model without values."""

from collections.abc import Iterator

from torch import nn

from ortolan.export.exportable import Exportable


def count(module: nn.Module) -> int:
    """Number of weights, shared ones once."""
    return sum(weight.numel() for _, _, weight in weights_of(module))


def weights_of(module: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Each weight once, with its name and the module that owns it."""
    seen: set[int] = set()
    # On `meta`, weights that transformers ties are separate parameters.
    copies = getattr(module, "all_tied_weights_keys", {})
    for prefix, owner in module.named_modules():
        for name, weight in owner.named_parameters(prefix, recurse=False):
            if id(weight) not in seen and name not in copies:
                seen.add(id(weight))
                yield name, owner, weight


def is_matrix(model: Exportable, owner: nn.Module, weight: nn.Parameter) -> bool:
    """Whether a weight is rounded: products, experts and token tables are."""
    if isinstance(owner, nn.Embedding):
        return len(weight) in (model.vocab_size, model.source_vocab_size)
    return weight.dim() == 2 or (weight.dim() == 3 and len(weight) > 1)
