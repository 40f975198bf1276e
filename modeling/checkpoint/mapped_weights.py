"""Weights of a checkpoint by our names, through the table of its family."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.leftovers import advice, is_idle
from ortolan.modeling.checkpoint.placements import Placement, placements
from ortolan.modeling.errors import WeightError
from ortolan.modeling.lazy_tensor import LazyTensor, are_equal
from ortolan.modeling.weights import Shapes, Table, TensorWeights, name_template, targets

MOST_NAMED = 16
"""Weights that an error message names."""

UNEXPECTED = "unexpected "
"""Start of the problem of a tensor that a model does not have."""

OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of norm parameters in checkpoints of the first BERTs, and in tables."""


def map_weights(
    source: Mapping[str, LazyTensor],
    table: Table,
    expected: Shapes,
    parts: Mapping[str, tuple[int, ...]],
    *,
    base_model_prefix: str,
    tied: Mapping[str, str],
) -> TensorWeights:
    """Check a checkpoint against a model, and map its weights to our names."""
    names = _with_originals(_table_names(source, table, base_model_prefix), table, tied)
    stored = {place: source[name] for place, name in names.items()}
    claimed: set[str] = set()
    mapped: dict[str, Tensor] = {}
    problems = []
    for ours, shape in expected.items():
        placed = placements(
            table,
            ours,
            shape,
            parts.get(ours, shape[:1]),
            has_outputs_first=lambda name: name in stored and stored[name].outputs_first,
        )
        differences = _differences(placed, names, source)
        problems += differences
        for placement in placed:
            claimed |= placement.stored.keys()
        if not differences:
            pieces = [part.ours([stored[name] for name in part.stored]) for part in placed]
            mapped[ours] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    unclaimed = {place: name for place, name in names.items() if place not in claimed}
    # A checkpoint may contain a copy of a head that is tied to the embedding.
    copies = {
        name: tied[target.name]
        for place, name in unclaimed.items()
        for target in targets(table, _entry(table, place) or place)
        if target.name in tied
    }
    for name, original in copies.items():
        problems += _misshapen(name, source, expected[original])
    for place, name in unclaimed.items():
        if name not in copies and not _is_dropped(table, place) and not is_idle(name):
            problems.append(f"{UNEXPECTED}{name}")
    if problems:
        raise differing(problems)
    for name, original in copies.items():
        if not are_equal(source[name], mapped[original]):
            raise WeightError(
                f"{name}: the config says that it equals the embedding, but its values differ. If "
                "both were trained, set tie_word_embeddings to false in config.json."
            )
    return TensorWeights(mapped)


def differing(problems: Iterable[str]) -> WeightError:
    """Error for weights that do not match the config; names the first `MOST_NAMED`."""
    differences = sorted(set(problems))
    named = differences[:MOST_NAMED]
    if len(differences) > MOST_NAMED:
        named.append(f"and {len(differences) - MOST_NAMED} more")
    unexpected = (advice(problem) for problem in differences if problem.startswith(UNEXPECTED))
    cause = next(filter(None, unexpected), "The checkpoint and its config do not belong together.")
    return WeightError(
        f"weights: {len(differences)} differences from config.json: {'; '.join(named)}. {cause}"
    )


def _differences(
    placed: Iterable[Placement], names: Mapping[str, str], source: Mapping[str, LazyTensor]
) -> list[str]:
    """Missing and misshapen tensors among those of a weight."""
    problems: list[str] = []
    for placement in placed:
        for place, shape in placement.stored.items():
            if place in names:
                problems += _misshapen(names[place], source, shape)
            else:
                problems.append(f"missing {place}")
    return problems


def _entry(table: Table, name: str) -> str | None:
    """Table entry of a tensor: its name, or its name with `{}` for its numbers."""
    layer = name_template(name)[0]
    expert = name_template(layer)[0]
    return next((key for key in (name, layer, expert) if key in table), None)


def _is_dropped(table: Table, name: str) -> bool:
    entry = _entry(table, name)
    return entry is not None and all(target.spare for target in targets(table, entry))


def _misshapen(name: str, source: Mapping[str, LazyTensor], expected: tuple[int, ...]) -> list[str]:
    actual = tuple(source[name].shape)
    return [] if actual == expected else [f"{name}: expected shape {expected}, got {actual}"]


def _table_names(published: Iterable[str], table: Table, prefix: str) -> dict[str, str]:
    """Published names by their table names, without tensors under a prefix that is dropped.

    A checkpoint without a head may leave out the prefix of the base model.
    """
    places = {}
    for name in published:
        if (place := _renamed_prefix(name, table)) is not None:
            places[_modern(place) if _entry(table, place) is None else place] = name
    bare = not any(place.startswith(f"{prefix}.") for place in places)
    return {
        f"{prefix}.{place}" if bare and _entry(table, place) is None else place: name
        for place, name in places.items()
    }


def _with_originals(
    names: Mapping[str, str], table: Table, tied: Mapping[str, str]
) -> dict[str, str]:
    """Names, in which a shared tensor that is stored only as a copy is the original as well."""
    found = dict(names)
    for place, name in names.items():
        entry = _entry(table, place)
        if entry is not None and isinstance(original := table[entry], str):
            found.setdefault(original, name)
        for copy in targets(table, entry or place):
            shared = copy._replace(name=tied.get(copy.name, ""))
            for key in table:
                if shared in targets(table, key):
                    found.setdefault(key, name)
    return found


def _renamed_prefix(name: str, table: Table) -> str | None:
    """A name with its prefix replaced as the table says; None if the table drops it."""
    for key, prefix in table.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return None if prefix is None else f"{prefix}{name[len(key) - 1 :]}"
    return name


def _modern(name: str) -> str:
    """A name without the suffixes of `OLD_NAMES`."""
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name
