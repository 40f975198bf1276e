"""models/copying and models/sorting: the data, and the trained models."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import copying.data
import copying.pictures
import sorting.data
from copying.answering import AnsweringTask, right_share
from ortolan.modeling import TransformerModel, load
from ortolan.modeling.training import Answers, Pair
from ortolan.modeling.training.recipe import read_recipe

MODELS = Path(__file__).parents[2] / "models"

TRAINED = [
    (task, kind)
    for task in ("copying", "sorting")
    for kind in ("attentive-rnn", "ntm", "transformer")
]


def symbols_of(text: str) -> list[str]:
    return [word for word in text.split() if word in "abcdefgh"]


def read(task: str) -> Answers:
    if task == "copying":
        return copying.data.read(texts=3000, held_out=40)
    return sorting.data.read(texts=3000, held_out=40)


def every_pair(data: Answers) -> list[Pair]:
    return [*data.train, *(pair for pairs in data.held_out.values() for pair in pairs)]


def test_answers_repeat_the_symbols() -> None:
    for prompt, answer in every_pair(read("copying")):
        kind, *words, bar = prompt.split()
        times = int(words.pop()) if kind == "repeat" else 1
        assert bar == "|"
        assert answer.split() == words * times == symbols_of(prompt) * times


def test_answers_are_sorted() -> None:
    for prompt, answer in every_pair(read("sorting")):
        assert answer.split() == sorted(symbols_of(prompt))
        assert prompt == f"{' '.join(symbols_of(prompt))} |"


@pytest.mark.parametrize("task", ["copying", "sorting"])
def test_data_is_reproducible_and_no_long_prompt_is_on_both_sides(task: str) -> None:
    data, again = read(task), read(task)
    assert (data.train, data.held_out) == (again.train, again.held_out)
    training = {prompt for prompt, _ in data.train}
    assert max(len(symbols_of(prompt)) for prompt in training) == 10
    for name, pairs in data.held_out.items():
        assert not any(prompt in training for prompt, answer in pairs if len(answer) > 10)
        if "double" in name:
            assert {len(symbols_of(prompt)) for prompt, _ in pairs} == {20}


def answering_task(task: str, kind: str) -> AnsweringTask:
    recipe = read_recipe(MODELS / task / kind / "recipe.toml")
    recipe.data.update({"texts": 300, "held_out": 30})
    return AnsweringTask(recipe, MODELS / task / kind)


@pytest.mark.parametrize(("task", "kind"), TRAINED)
def test_a_trained_model_is_as_accurate_as_its_figures(task: str, kind: str) -> None:
    folder = MODELS / task / kind
    module, task_of_recipe = load(folder, TransformerModel), answering_task(task, kind)
    figures = json.loads((folder / "training.json").read_text())
    assert module.config == task_of_recipe.module.config
    assert sum(p.numel() for p in module.parameters()) == figures["parameters"]
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() == (
        task_of_recipe.tokenizer.get_vocab()
    )
    for name, texts in task_of_recipe.held_out.items():
        share = figures[f"held_out_{name}_accuracy"]
        assert right_share(module, texts) == pytest.approx(share, abs=0.15)


def test_the_turing_machine_copies_without_error_at_trained_lengths() -> None:
    figures = json.loads((MODELS / "copying" / "ntm" / "training.json").read_text())
    assert figures["held_out_copy_trained_accuracy"] == 1


def test_the_turing_machine_reads_the_slots_in_the_order_of_writing() -> None:
    prompt = "copy c a f e b a d |"
    write, read = copying.pictures.addressing_panels(prompt)
    assert list(write.keys) == [*prompt.split(), *symbols_of(prompt)]
    slots = len(read.queries)
    written = write.shares.argmax(0)[1:8].tolist()
    answered = read.shares.argmax(0)[8:15].tolist()
    assert written == answered
    assert {(after - before) % slots for before, after in pairwise(answered)} in ({1}, {slots - 1})


def test_the_attentive_network_attends_to_the_symbols_in_order() -> None:
    prompt = "copy c a f e b d |"
    panel = copying.pictures.attention_panel(prompt)
    assert panel.shares.shape == (len(panel.queries), len(panel.keys))
    positions = panel.shares[7:13].argmax(1).tolist()
    assert positions == sorted(positions)
    assert len(set(positions)) > 3
