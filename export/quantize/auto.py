"""Bits for each weight by what they do to the output: `ortolan.Auto`.

1. Codes of every weight in every scheme that it may take (`candidates`).
2. The effect of each weight alone, in its smallest scheme, on the output of the whole model
   (`effects`); in other schemes as much less as their error is less.
3. A choice whose effects add up to what is allowed (`allocate`), measured as a whole on inputs
   that nothing was fitted to, and chosen again with what that says of the sum.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ortolan import files
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.options import Auto, PrecisionName
from ortolan.export.progress import Progress
from ortolan.export.quantize import candidates
from ortolan.export.quantize.allocate import Form, fewest_bytes, least_effect
from ortolan.export.quantize.calibrate import in_schemes
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.effects import Reference, some_of
from ortolan.export.quantize.rounding import QuantizedWeight
from ortolan.export.quantize.schemes import scheme_choices
from ortolan.export.quantize.stored import stored_schemes, stored_weights
from ortolan.export.scheme import Scheme
from ortolan.export.settings import Quantization

TOKENS = 256
"""That the effect of each weight is measured on, more or less."""

MOST_CHOICES = 200
"""Weights with a choice of their own; where there are more, those of a layer have one."""

JUDGED = 8
"""One input in so many is not fitted to: the choice is judged by it."""

AIM, LEAST, MOST = 0.7, 0.6, 0.75
"""Parts of the bound: what a choice aims at, and between what it is taken. Texts of others have up
to a quarter more than what a model writes itself (docs/adr/0019)."""

ROUNDS, TRIES = 6, 24
"""Choices that are measured as a whole, and bounds that are tried for them, at most."""

SMALLEST = 1e-9
"""A divergence that is none."""

Choice = dict[str, Scheme]
"""The schemes of weights that are chosen together, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A scheme for every weight, and its codes.

    Attributes:
        schemes: by name.
        candidates: have the codes.
    """

    schemes: Mapping[str, Scheme]
    candidates: Candidates

    @property
    def precision(self) -> PrecisionName:
        """As the manifest names it."""
        return "int4" if any(scheme.bits == 4 for scheme in self.schemes.values()) else "int8"

    def weights(self, names: Iterable[str]) -> Iterator[QuantizedWeight]:
        """Some weights in their schemes."""
        for name in names:
            yield self.candidates.weight(name, self.schemes[name])


def choose(
    models: Sequence[ir.Model],
    model: Exportable,
    quantization: Quantization,
    auto: Auto,
    inputs: Inputs,
    judged: Inputs,
    folder: Path,
    *,
    other_bytes: Callable[[Container[str]], int],
    pages: Callable[[int], int],
    progress: Progress,
) -> Chosen:
    """Choose a scheme for every weight.

    Args:
        models: tidied graphs.
        model: whose weights they read.
        quantization: in the fewest bytes.
        auto: what is asked for.
        inputs: to calibrate on.
        judged: other inputs, which the bundle is judged by.
        folder: for files of which nothing is kept.
        other_bytes: of the file of weights, without some of them.
        pages: bytes that a tensor of so many takes there.
        progress: told of every step.

    Raises:
        OptionError: the target size is too small for any choice.
        ParityError: the bound is too low for any choice.
    """
    found = scheme_choices(models, quantization, model.weights)
    offered = _by_layer(found) if len(found) > MOST_CHOICES else list(found.values())
    learned, held = _split(inputs)
    made = _candidates(model, quantization, offered, learned, folder, progress)
    forms = _forms(model, offered, made, learned, folder, pages, progress)
    if auto.target_size is not None:
        others = other_bytes({name for names in found for name in names})
        places = least_effect(forms, auto.target_size - others)
        _check_size(_bytes(forms, places) + others, auto.target_size)
        return Chosen(schemes=_schemes(offered, places), candidates=made)
    judges = [
        Reference(model, each, _subfolder(folder, f"judge-{number}"))
        for number, each in enumerate((judged, held))
        if each.sources or each.ids
    ]

    def measure(places: Sequence[int]) -> float:
        variant = made.instead(_schemes(offered, places), as_kernels=True)
        return max(judge.distances([variant])[0] for judge in judges)

    places = _within(forms, auto.max_kl or 0.0, measure, progress)
    return Chosen(schemes=_schemes(offered, places), candidates=made)


def _within(
    forms: Sequence[Sequence[Form]],
    bound: float,
    measure: Callable[[Sequence[int]], float],
    progress: Progress,
) -> list[int]:
    """The smallest measured choice that keeps a bound.

    Raises:
        ParityError: none keeps it.
    """
    known: dict[tuple[int, ...], float] = {}
    for limit in _limits(forms, bound):
        places = tuple(fewest_bytes(forms, limit.effect))
        if places not in known:
            if len(known) == ROUNDS:
                break
            known[places] = measure(places)
            progress("choose", len(known), ROUNDS)
        limit.got = known[places]
    progress("choose", ROUNDS, ROUNDS)
    nearest = tuple(fewest_bytes(forms, 0.0))
    if not any(got <= MOST * bound for got in known.values()) and nearest not in known:
        known[nearest] = measure(nearest)
    kept = [places for places, got in known.items() if got <= MOST * bound]
    if not kept:
        raise ParityError(
            f"max_kl: expected a mean KL divergence of at most {bound:.3g} from PyTorch, got "
            f"{known[nearest]:.3g} with every weight in 8 bits. The bundle was not kept. Allow "
            "more, or choose --precision fp32."
        )
    return list(min(kept, key=partial(_bytes, forms)))


@dataclass(slots=True)
class _Limit:
    """A bound on the sum of effects, and the divergence that the choice has with it."""

    effect: float
    got: float = 0.0


def _limits(forms: Sequence[Sequence[Form]], bound: float) -> Iterator[_Limit]:
    """Sums of effects to try, each by what those before it gave.

    In proportion to what is missing; between two that are on both sides of the bound, nearer to
    both.
    """
    most = sum(max(form.effect for form in each) for each in forms)
    limit, low, high = min(AIM * bound, most), 0.0, math.inf
    for _ in range(TRIES):
        tried = _Limit(limit)
        yield tried
        if tried.got > MOST * bound:
            high = limit
        else:
            low = limit
            if tried.got >= LEAST * bound or limit == most:
                return
        limit = min(limit * AIM * bound / max(tried.got, SMALLEST), most)
        if not low < limit < high:
            limit = math.sqrt(low * high) if low else high / 2


def _split(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """What is calibrated on, and what is not."""
    places = range(max(len(inputs.sources), len(inputs.ids)))
    held = {place for place in places if place % JUDGED == JUDGED - 1}
    return (
        _picked(inputs, [place for place in places if place not in held]),
        _picked(inputs, sorted(held)),
    )


def _picked(inputs: Inputs, places: Sequence[int]) -> Inputs:
    return replace(
        inputs,
        sources=[inputs.sources[place] for place in places] if inputs.sources else (),
        ids=[inputs.ids[place] for place in places] if inputs.ids else (),
    )


def _candidates(
    model: Exportable,
    quantization: Quantization,
    offered: Sequence[Sequence[Choice]],
    inputs: Inputs,
    folder: Path,
    progress: Progress,
) -> Candidates:
    """The codes of every weight in every scheme."""
    made = Candidates(_subfolder(folder, "codes"), model.weights)
    schemes: dict[str, list[Scheme]] = {}
    for choice in (choice for each in offered for choice in each):
        stored = {} if quantization.reuse == "none" else stored_schemes(model.weights, choice)
        for weight in stored_weights(model.weights, stored):
            made.add(weight)
        for name in choice.keys() - stored.keys():
            schemes.setdefault(name, []).append(choice[name])
    unique = {name: tuple(dict.fromkeys(each)) for name, each in schemes.items()}
    for weight in in_schemes(model, unique, inputs, candidates.fit, progress=progress):
        made.add(weight)
    return made


def _forms(
    model: Exportable,
    offered: Sequence[Sequence[Choice]],
    made: Candidates,
    inputs: Inputs,
    folder: Path,
    pages: Callable[[int], int],
    progress: Progress,
) -> list[list[Form]]:
    """Bytes and effect of every choice."""
    reference = Reference(model, some_of(model, inputs, TOKENS), _subfolder(folder, "effects"))
    smallest = [made.instead(each[0]) for each in offered]
    effects = reference.distances(smallest, progress)
    return [
        [
            Form(
                sum(pages(size) for name in choice for size in _sizes(model, name, choice[name])),
                max(effect, SMALLEST) * _less(made, each[0], choice),
            )
            for choice in each
        ]
        for each, effect in zip(offered, effects, strict=True)
    ]


def _less(made: Candidates, smallest: Choice, choice: Choice) -> float:
    """What is left of the error of the smallest choice, on average over its weights."""
    shares = [
        made.loss(name, choice[name]) / whole
        for name, scheme in smallest.items()
        if (whole := made.loss(name, scheme))
    ]
    return sum(shares) / len(shares) if shares else 0.0


def _sizes(model: Exportable, name: str, scheme: Scheme) -> tuple[int, ...]:
    """Bytes of the tensors of a weight, or of a layer's experts together."""
    *rows, columns = model.weights.shape(name)
    return scheme.sizes(math.prod(rows), columns)


def _by_layer(found: Mapping[tuple[str, ...], Sequence[Choice]]) -> list[list[Choice]]:
    """One choice for all weights of a layer."""
    layers: dict[str, list[Sequence[Choice]]] = {}
    for names, each in found.items():
        numbered = re.search(r"\.\d+\.", f".{names[0]}")
        layer = names[0] if numbered is None else f".{names[0]}"[: numbered.end()]
        layers.setdefault(layer, []).append(each)
    joined = []
    for of_layer in layers.values():
        # Who has fewer schemes takes the last of them again.
        joined.append(
            [
                _merged(one[min(place, len(one) - 1)] for one in of_layer)
                for place in range(max(map(len, of_layer)))
            ]
        )
    return joined


def _schemes(offered: Sequence[Sequence[Choice]], places: Sequence[int]) -> Choice:
    return _merged(each[place] for each, place in zip(offered, places, strict=True))


def _merged(choices: Iterable[Choice]) -> Choice:
    return {name: scheme for choice in choices for name, scheme in choice.items()}


def _bytes(forms: Sequence[Sequence[Form]], places: Sequence[int]) -> int:
    return sum(each[place].bytes for each, place in zip(forms, places, strict=True))


def _check_size(smallest: int, target: int) -> None:
    """Refuse a size that the smallest choice exceeds."""
    if smallest > target:
        raise OptionError(
            f"target size: expected at least {smallest:,} bytes for this model, got {target:,}. "
            "Allow more."
        )


def _subfolder(folder: Path, name: str) -> Path:
    made = folder / name
    files.make_folder(made)
    return made
