"""Tiny checkpoints, and laws that hold for all bundles exported from them.

A `Case` is data: how its checkpoint is written, inputs, what another library says about them, and
how it is exported. A law (`tests/cases/laws.py`) is a function of a `Run`, which is a case in one
of its variants. A law applies to the cases that have what it needs, so a new case gets its tests by
being in a table:

    MY_MODEL = Case(
        name="my model",
        write=write_my_model,                 # folder -> None, or a module that is exported
        inputs={"short": "w9 w12", "long": "w9 w12 w10"},
        call=lambda model, texts: [labels.scores for labels in model.classify(texts)],
        reference=by_pipeline,                # checkpoint, inputs -> the same from transformers
        features=frozenset({"texts"}),
        variants=(FP32, Variant(name="int8", precision="int8")),
        commands={"of one text": Command(words=("classify", "w9"), written=lambda model: "...")},
        refusals={"no text": lambda model: model.classify([])},
    )
    CASES = (MY_MODEL,)

and a file of tests is

    @pytest.mark.parametrize(("case", "variant", "law"), applicable(CASES))
    def test_law(case: Case, variant: Variant, law: Law, run: Run) -> None:
        law(run)

Spread the cases over several files, since a file stays in one process. A bundle is exported once in
a run of the tests, whichever process needs it. Any other test gets it from the fixture `runs`:
`runs(MY_MODEL).model`, `runs(MY_MODEL, "int8").bundle`, `runs(MY_MODEL).copied(tmp_path)`.

The texts of refusals are in snapshots: `pytest --snapshot-update`, then read them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.export.options import DEFAULTS, Device, ExportOptions, Precision

Edit = Callable[[Any], None]
"""Changes a decoded JSON document, such as those of `tests.runtime.damaged_bundles.put`."""

NEW = 8
"""Tokens of an answer."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How a case is exported.

    Attributes:
        name: of the variant.
        precision: of the weights.
        device: that the bundle is for; it runs on the CPU.
        options: of the export.
        max_context: of the export.
        tolerance: how far numbers are from the reference, relative to the largest; None where
            rounded weights give other answers.
        is_quick: its tests are in `make test`.
    """

    name: str
    precision: Precision = "fp32"
    device: Device = "cpu"
    options: ExportOptions = DEFAULTS
    max_context: int | None = None
    tolerance: float | None = None
    is_quick: bool = False


FP32 = Variant(name="fp32", tolerance=1e-4)
QUICK = Variant(name="fp32", tolerance=1e-4, is_quick=True)


def low_bit(precision: Precision, **options: Any) -> Variant:
    """A variant of rounded weights, however far it is from the trained model."""
    name = precision if isinstance(precision, str) else precision.name
    words = [name, *(str(value) for value in options.values())]
    allowed = ExportOptions(allow_poor=True, **options)
    return Variant(name=" ".join(words), precision=precision, options=allowed)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line, and what it prints.

    Attributes:
        words: the command and its arguments after the bundle.
        written: its output, from calls of the model.
        stdin: its input.
    """

    words: tuple[str, ...]
    written: Callable[[Any], str]
    stdin: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A user's message that begins with an image or sound, and the prompt that it becomes.

    Attributes:
        prompt: what the template makes of it.
        text: of the message, after the image or sound.
        parts: the same image or sound in every form that a message takes.
        served: the form that a request over HTTP takes.
    """

    prompt: Any
    text: str
    parts: Mapping[str, Mapping[str, Any]]
    served: Mapping[str, Any]


def generated(model: Any, prompts: Sequence[Any]) -> list[Any]:
    """Number of tokens of each prompt, and its likeliest answer."""
    done = model.generate(list(prompts), max_new_tokens=NEW, ignore_eos=True)
    return [(one.timings.prompt_tokens, list(one.tokens)) for one in done]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A tiny checkpoint, and what is known of it.

    Attributes:
        name: a folder's name.
        family: its `model_type`, if it shows that a type is exported.
        write: writes the checkpoint to a folder. If it returns a module, that is exported. Keyword
            arguments change it, for `refused`.
        inputs: by what is particular about each.
        call: what the model says about some inputs.
        reference: what another library says, from the checkpoint and the inputs.
        logits: of every token of a text, by a reference, from the checkpoint and the ids.
        variants: how it is exported.
        features: what laws ask for.
            `generates`: it is a decoder. `drafts`, `rewinds`: its states can go back.
            `exact`: to the bit, alongside other texts and in chunks of any size.
            `compared`: its numbers, with those of transformers.
            `encodes`: its services have the calls of the model.
            `every role`: a weight of each is damaged, which takes long.
            `one by one`: an encoder that computes no batches.
        part: folder in the bundle of the encoder of images or sounds.
        prefixes: groups of prompts that a service computes one after the other, each with the
            number of tokens that it takes from the prefix cache.
        chat: a message with an image or sound.
        commands: by what is particular about each.
        refusals: calls of the model that are refused.
        refused: arguments of `write` for checkpoints that are refused.
        edits: changes of manifest.json that are refused or fail verification. A name that begins
            with the name of a part and a colon is of that part.
    """

    name: str
    write: Callable[..., Any]
    family: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[[Any, Sequence[Any]], Sequence[Any]] = generated
    reference: Callable[[Path, Sequence[Any]], Sequence[Any]] | None = None
    logits: Callable[[Path, Sequence[int]], NDArray[np.float32]] | None = None
    variants: tuple[Variant, ...] = (FP32,)
    features: frozenset[str] = frozenset()
    part: str | None = None
    prefixes: tuple[Sequence[tuple[Any, int]], ...] = ()
    chat: Chat | None = None
    commands: Mapping[str, Command] = field(default_factory=dict)
    refusals: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edits: Mapping[str, Edit] = field(default_factory=dict)
