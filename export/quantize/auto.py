"""Chooses 4 or 8 bits for every weight by the effect on the output: `ortolan.Auto`.

1. `candidates`: codes of every weight in every scheme that it may have.
2. `effects`: the divergence of the whole model with one weight in its smallest scheme; larger
   schemes count in proportion to their error.
3. `allocate`: the fewest bytes whose effects sum to a limit. The choice is measured as a whole on
   inputs that nothing was fitted to, and the limit corrected by the result.
4. `train_scales` at the best effort, which lowers the divergence further.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import onnx_ir as ir

from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.low_bit import Quantization
from ortolan.export.options import PrecisionName
from ortolan.export.progress import Progress
from ortolan.export.quantize.allocate import Form, fewest_bytes, least_effect
from ortolan.export.quantize.calibrate import calibrated_weights, fit_with_loss
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.effects import Reference, some_of
from ortolan.export.quantize.schemes import scheme_choices
from ortolan.export.quantize.stored import by_origin, stored_weights
from ortolan.export.quantize.tune import train_scales
from ortolan.export.scheme import Scheme
from ortolan.export.settings import Plan
from ortolan.export.sizes import page_bytes, pages

TOKENS = 256
"""Approximate number of tokens for measuring the effect of one weight."""

MAX_CHOICES = 200
"""Number of choices above which all weights of a layer share one."""

HOLD_OUT = 8
"""Hold out every eighth input, to judge choices by."""

AIM, LEAST, MOST = 0.7, 0.6, 0.75
"""Fractions of the limit on the divergence: the aim, and the range in which a choice is accepted.
Other texts diverge up to a quarter more than text that the model wrote (docs/adr/0019)."""

ROUNDS, TRIES = 6, 24
"""Maximum number of choices measured as a whole, and of limits tried for them."""

SMALLEST = 1e-9
"""A divergence that counts as none."""

Choice = Mapping[str, Scheme]
"""Schemes of weights that are chosen together, by name."""

Menu = Sequence[Sequence[Choice]]
"""The choices of each group of weights, the smallest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A scheme for every weight, by name, and its codes."""

    schemes: Mapping[str, Scheme]
    candidates: Candidates

    @property
    def precision(self) -> PrecisionName:
        """Precision in the manifest."""
        return "int4" if any(scheme.bits == 4 for scheme in self.schemes.values()) else "int8"


def choose(
    models: Sequence[ir.Model],
    model: Exportable,
    plan: Plan,
    inputs: Inputs,
    judging: Inputs,
    folder: Path,
    progress: Progress,
) -> Chosen:
    """Choose a scheme for every weight, within the limit of a plan's `auto`.

    `judging` are the inputs that judge the bundle; `folder` is for temporary files.
    """
    auto, quantization = plan.auto, plan.quantization
    if auto is None or quantization is None:
        raise ValueError("expected a plan that chooses bits")
    choices = scheme_choices(models, quantization, model.weights)
    menu = _by_layer(choices) if len(choices) > MAX_CHOICES else list(choices.values())
    learned, held_out = _split(inputs)
    candidates = _candidates(model, quantization, menu, learned, folder, progress)
    forms = _forms(model, menu, candidates, learned, folder, progress)
    if auto.target_size is not None:
        others = page_bytes(models, without={name for names in choices for name in names})
        places = least_effect(forms, auto.target_size - others)
        smallest = _bytes(forms, places) + others
        if smallest > auto.target_size:
            raise OptionError(
                f"target_size must be at least {smallest:,} bytes for this model (got "
                f"{auto.target_size:,})."
            )
    else:
        judges = [
            Reference(model, judged, folder / f"judge-{number}")
            for number, judged in enumerate((judging, held_out))
            if judged.sources or judged.ids
        ]

        def measure(places: Sequence[int]) -> float:
            variant = candidates.instead(_schemes(menu, places), as_kernels=True)
            return max(judge.distances([variant])[0] for judge in judges)

        places = _within(forms, auto.max_kl or 0.0, measure, progress)
    schemes = _schemes(menu, places)
    if quantization.trains_scales:
        _, rest = by_origin(model.weights, schemes, quantization)
        train_scales(model, candidates, rest, learned, folder, progress)
    return Chosen(schemes=schemes, candidates=candidates)


def _within(
    forms: Sequence[Sequence[Form]],
    bound: float,
    measure: Callable[[Sequence[int]], float],
    progress: Progress,
) -> list[int]:
    """The smallest measured choice within a limit on the divergence.

    Sums of effects are off by up to a factor of three, so their limit is searched: scaled by what
    the last choice measured, or bisected between one choice below the limit and one above it.
    """
    measured: dict[tuple[int, ...], float] = {}
    most = sum(max(form.effect for form in weight) for weight in forms)
    limit, low, high = min(AIM * bound, most), 0.0, math.inf
    for _ in range(TRIES):
        places = tuple(fewest_bytes(forms, limit))
        if places not in measured:
            if len(measured) == ROUNDS:
                break
            measured[places] = measure(places)
            progress("choose", len(measured), ROUNDS)
        divergence = measured[places]
        if divergence > MOST * bound:
            high = limit
        else:
            low = limit
            if divergence >= LEAST * bound or limit == most:
                break
        limit = min(limit * AIM * bound / max(divergence, SMALLEST), most)
        if not low < limit < high:
            limit = math.sqrt(low * high) if low else high / 2
    progress("choose", ROUNDS, ROUNDS)
    nearest = tuple(fewest_bytes(forms, 0.0))
    accepted = [places for places, divergence in measured.items() if divergence <= MOST * bound]
    if not accepted and nearest not in measured:
        measured[nearest] = measure(nearest)
        accepted = [nearest] if measured[nearest] <= MOST * bound else []
    if not accepted:
        raise ParityError(
            f"max_kl {bound:.3g} is too low: with every weight in 8 bits, the mean KL divergence "
            f"from PyTorch is {measured[nearest]:.3g}. The bundle was deleted. Allow more, or "
            "choose --precision fp32."
        )
    return list(min(accepted, key=partial(_bytes, forms)))


def _split(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Inputs to calibrate on, and the hold-out."""
    every = slice(HOLD_OUT - 1, None, HOLD_OUT)
    held_out = replace(inputs, sources=inputs.sources[every], ids=inputs.ids[every])
    sources, ids = list(inputs.sources), list(inputs.ids)
    del sources[every], ids[every]
    return replace(inputs, sources=sources, ids=ids), held_out


def _candidates(
    model: Exportable,
    quantization: Quantization,
    menu: Menu,
    inputs: Inputs,
    folder: Path,
    progress: Progress,
) -> Candidates:
    """The codes of every weight in every scheme."""
    candidates = Candidates(folder, model.weights)
    schemes: dict[str, dict[Scheme, None]] = {}
    for choice in chain.from_iterable(menu):
        kept, rest = by_origin(model.weights, choice, quantization)
        for weight in stored_weights(model.weights, kept):
            candidates.add(weight)
        for name, scheme in rest.items():
            schemes.setdefault(name, {})[scheme] = None
    plan = {name: tuple(own) for name, own in schemes.items()}
    for weight in calibrated_weights(model, plan, inputs, fit_with_loss, progress=progress):
        candidates.add(weight)
    return candidates


def _forms(
    model: Exportable,
    menu: Menu,
    candidates: Candidates,
    inputs: Inputs,
    folder: Path,
    progress: Progress,
) -> list[list[Form]]:
    """Bytes and effect of every choice."""
    reference = Reference(model, some_of(model, inputs, TOKENS), folder / "effects")
    smallest = [candidates.instead(choices[0]) for choices in menu]
    effects = reference.distances(smallest, progress)
    return [
        [
            Form(
                sum(
                    pages(size)
                    for name, scheme in choice.items()
                    for size in _sizes(model, name, scheme)
                ),
                max(effect, SMALLEST) * _remaining_loss(candidates, choices[0], choice),
            )
            for choice in choices
        ]
        for choices, effect in zip(menu, effects, strict=True)
    ]


def _remaining_loss(candidates: Candidates, smallest: Choice, choice: Choice) -> float:
    """Loss of a choice relative to the smallest one, on average over its weights."""
    shares = [
        candidates.loss(name, choice[name]) / whole
        for name, scheme in smallest.items()
        if (whole := candidates.loss(name, scheme))
    ]
    return sum(shares) / len(shares) if shares else 0.0


def _sizes(model: Exportable, name: str, scheme: Scheme) -> tuple[int, ...]:
    """Bytes of each tensor of a weight, or of all experts of a layer."""
    *rows, columns = model.weights.shape(name)
    return scheme.sizes(math.prod(rows), columns)


def _by_layer(choices: Mapping[tuple[str, ...], Sequence[Choice]]) -> list[list[Choice]]:
    """One choice for all weights of a layer."""
    layers: dict[str, list[Sequence[Choice]]] = {}
    for names, options in choices.items():
        numbered = re.search(r"\.\d+\.", f".{names[0]}")
        layer = names[0] if numbered is None else f".{names[0]}"[: numbered.end()]
        layers.setdefault(layer, []).append(options)
    return [
        [
            # A weight with fewer schemes repeats its last one.
            _merged(options[min(place, len(options) - 1)] for options in of_layer)
            for place in range(max(map(len, of_layer)))
        ]
        for of_layer in layers.values()
    ]


def _schemes(menu: Menu, places: Sequence[int]) -> Choice:
    return _merged(choices[place] for choices, place in zip(menu, places, strict=True))


def _merged(choices: Iterable[Choice]) -> Choice:
    return {name: scheme for choice in choices for name, scheme in choice.items()}


def _bytes(forms: Sequence[Sequence[Form]], places: Sequence[int]) -> int:
    return sum(weight[place].bytes for weight, place in zip(forms, places, strict=True))
