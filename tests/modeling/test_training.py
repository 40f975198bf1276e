"""Recipes, the text they learn from, and a training of seconds."""

import json
import math
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits, reference_logits
from transformers import AutoModelForCausalLM

from ortolan.modeling import ConfigError, load
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.families import family_of
from ortolan.modeling.training.bpe import byte_level_bpe, encode
from ortolan.modeling.training.corpora.stdlib import Corpus, read_corpus
from ortolan.modeling.training.evaluation import bits_per_byte
from ortolan.modeling.training.recipe import OptimizerRecipe, StdlibData, read_recipe
from ortolan.modeling.training.tasks.task import required
from ortolan.modeling.training.trainer import learning_rate, train

RECIPE = """
[model]
model_type = "llama"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 64
tie_word_embeddings = true

[tokenizer]
vocab_size = 300

[data]
source = "stdlib"
held_out = ["held"]
exclude = ["vendored/*"]

[training]
steps = 24
batch_size = 4
sequence_length = 32
learning_rate = 1e-2
warmup_steps = 4
evaluate_every = 12
"""

LINE = "def add(first, second):\n    return first + second\n"


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a few files."""
    root = tmp_path / "stdlib"
    files = {
        "a.py": LINE * 20,
        "package/b.py": LINE.replace("add", "sum") * 20,
        "held/c.py": LINE * 3,
        "vendored/d.py": "import os\n",
        "e.txt": "not Python",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root) if name == "stdlib" else "")
    return root


def write_recipe(folder: Path, old: str = "", new: str = "") -> Path:
    """The recipe, with one change."""
    assert old in RECIPE
    path = folder / "recipe.toml"
    path.write_text(RECIPE.replace(old, new) if old else RECIPE + new)
    return path


# --- recipes ------------------------------------------------------------------------------------


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path))
    assert recipe.model["hidden_size"] == 32
    assert recipe.data == StdlibData(held_out=("held",), exclude=("vendored/*",))
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "models").rglob("*.toml")))
def test_the_recipes_of_this_repository_are_read(path: Path) -> None:
    recipe = read_recipe(path)
    assert family_of(recipe.model["model_type"])
    if isinstance(recipe.data, StdlibData):
        size = required(recipe.tokenizer, "tokenizer", recipe.data).vocab_size
        config = config_from_hf({"vocab_size": size, **recipe.model})
        window = required(recipe.training.sequence_length, "sequence_length", recipe.data)
        assert window <= config.context_length


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 24", "steps = 24\nstep = 3", "unknown field `step`"),
        ("steps = 24\n", "", "missing required field `steps`"),
        ("steps = 24", 'steps = "24"', "Expected `int`, got `str`"),
        ("steps = 24", "steps = 0", "Expected `int` >= 1"),
        ("batch_size = 4", "batch_size = -1", "Expected `int` >= 1"),
        ("evaluate_every = 12", "evaluate_every = 0", "Expected `int` >= 1"),
        ("learning_rate = 1e-2", "learning_rate = 0.0", "Expected `float` > 0"),
        ("warmup_steps = 4", "warmup_steps = -1", "Expected `int` >= 0"),
        ("steps = 24", 'steps = 24\nprecision = "fp8"', "Invalid enum value 'fp8'"),
        ('source = "stdlib"', 'source = "web"', "Invalid value 'web'"),
        ("[data]", "[data", "expected a recipe"),
        ("[tokenizer]", "[tokenizers]", "unknown field `tokenizers`|required field `tokenizer`"),
    ],
)
def test_a_wrong_recipe_is_an_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(write_recipe(tmp_path, old, new))
    assert "recipe.toml: " in str(caught.value)


def test_an_absent_recipe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="expected a recipe, got No such file"):
        read_recipe(tmp_path / "recipe.toml")


def test_a_recipe_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="expected a recipe"):
        read_recipe(tmp_path / "recipe.toml")


@pytest.mark.usefixtures("stdlib")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warmup_steps = 4", "warmup_steps = 24", "warmup_steps below steps, got 24 and 24"),
        ("sequence_length = 32", "sequence_length = 65", "up to the model's 64, got 65"),
        ("sequence_length = 32", "", "training.sequence_length: expected a value for stdlib"),
        ("[tokenizer]\nvocab_size = 300", "", "tokenizer: expected a value for stdlib"),
        ("steps = 24", "steps = 24\naverage_last = 25", "average_last up to steps, got 25 and 24"),
        ('held_out = ["held"]', 'held_out = ["absent"]', "files to measure on .* got 3 and 0"),
        ('exclude = ["vendored/*"]', 'exclude = ["*"]', "got 0 and 0"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_an_error_before_any_work(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        train(write_recipe(tmp_path, old, new), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_text_shorter_than_a_window_is_an_error(stdlib: Path, tmp_path: Path) -> None:
    for name in ("a.py", "package/b.py"):
        (stdlib / name).write_text("x")
    with pytest.raises(RecipeError, match=r"sequence_length below the \d+ tokens of the text"):
        train(write_recipe(tmp_path), tmp_path / "out")


@pytest.mark.usefixtures("stdlib")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('model_type = "llama"', 'model_type = "mamba"'),
        ("hidden_size = 32", "hidden_sizes = 32"),
        ("num_key_value_heads = 2", "num_key_value_heads = 3"),
    ],
)
def test_a_model_that_ortolan_does_not_have_is_an_error_before_any_work(
    tmp_path: Path, old: str, new: str
) -> None:
    with pytest.raises(ConfigError):
        train(write_recipe(tmp_path, old, new), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fusing_without_a_compiler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    recipe = write_recipe(tmp_path, "steps = 24", "steps = 24\ncompile = true")
    with pytest.raises(RecipeError, match=r"expected a C\+\+ compiler on PATH"):
        train(recipe, tmp_path / "out")


# --- learning rate ------------------------------------------------------------------------------


def optimizer(**changes: Any) -> OptimizerRecipe:
    values: dict[str, Any] = {
        "steps": 100,
        "batch_size": 1,
        "sequence_length": 8,
        "learning_rate": 2.0,
        "warmup_steps": 10,
    }
    return OptimizerRecipe(**values | changes)


def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing() -> None:
    rates = [learning_rate(optimizer(), step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[4] == pytest.approx(1.0)
    assert rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_inverse_square_root_is_the_schedule_of_the_paper() -> None:
    recipe = optimizer(schedule="inverse_sqrt", learning_rate=(512 * 10) ** -0.5)
    for step in range(1, 101):
        published = 512**-0.5 * min(step**-0.5, step * 10**-1.5)
        assert learning_rate(recipe, step - 1) == pytest.approx(published)


def test_without_warm_up_the_learning_rate_starts_at_its_peak() -> None:
    assert learning_rate(optimizer(warmup_steps=0), 0) == 2.0


# --- text ---------------------------------------------------------------------------------------


def test_a_corpus_is_the_files_that_the_recipe_names(stdlib: Path) -> None:
    recipe = StdlibData(held_out=("held",), exclude=("vendored/*",))
    corpus = read_corpus(recipe)
    texts = [(stdlib / name).read_text() for name in ("a.py", "package/b.py", "held/c.py")]
    assert corpus == Corpus(train=tuple(texts[:2]), held_out=(texts[2],))
    assert corpus.held_out_bytes == len(texts[2])


def test_a_folder_that_only_begins_with_the_name_is_not_held_out(stdlib: Path) -> None:
    (stdlib / "heldover").mkdir()
    (stdlib / "heldover/f.py").write_text("x = 1\n")
    recipe = StdlibData(held_out=("held",), exclude=())
    assert "x = 1\n" in read_corpus(recipe).train


def test_a_document_is_its_text_behind_the_special_token() -> None:
    texts = (LINE * 5, "naïve 漢字\n")
    tokenizer = byte_level_bpe(texts, vocab_size=280, special_tokens=["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    for ids, text in zip(encode(tokenizer, texts, "<|endoftext|>"), texts, strict=True):
        assert ids[0] == end
        assert end not in ids[1:]
        assert tokenizer.decode(ids[1:]) == text
    with pytest.raises(RecipeError, match="expected the token '<s>'"):
        encode(tokenizer, texts, "<s>")


# --- a training of seconds ----------------------------------------------------------------------


@pytest.mark.usefixtures("stdlib")
def test_a_training_writes_a_checkpoint_that_learned(tmp_path: Path) -> None:
    folder = train(write_recipe(tmp_path), tmp_path / "out")

    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "loss.png",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    assert figures["tokens_seen"] == 24 * 4 * 32
    assert [step for step, _ in figures["measured"]] == [12, 24, 24]
    first, last = figures["measured"][0][1], figures["measured"][-1][1]
    untrained = math.log2(300) * figures["held_out_tokens"] / figures["held_out_bytes"]
    assert last < first < untrained
    assert last < 0.7 * untrained
    assert figures["held_out_bits_per_byte"] == last
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")

    module = load(folder)
    assert figures["parameters"] == sum(p.numel() for p in module.parameters())
    end = module.config.bos_token_id
    assert module.config.eos_token_ids == (end,)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": end, "eos_token_id": [end]}

    ids = torch.tensor([[end, 5, 7, 11]])
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        assert_same_logits(module(ids), reference_logits(reference, ids))


@pytest.mark.usefixtures("stdlib")
def test_what_is_measured_is_the_rounded_checkpoint(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = train(write_recipe(tmp_path), tmp_path / "out")
    figures = json.loads((folder / "training.json").read_text())
    text = LINE * 3
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = encode(tokenizer, (text,), "<|endoftext|>")
    measured = bits_per_byte(load(folder), documents, len(text), window=32)
    assert measured == pytest.approx(figures["held_out_bits_per_byte"], rel=1e-6)


@pytest.mark.usefixtures("stdlib")
def test_the_same_recipe_gives_the_same_model(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "steps = 24", 'steps = 6\nprecision = "bf16"')
    one, other = (train(recipe, tmp_path / name) for name in ("one", "other"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("stdlib")
def test_the_mean_of_the_last_weights_is_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    zero_grad = torch.optim.AdamW.zero_grad

    def spy(self: torch.optim.AdamW, **options: bool) -> None:
        zero_grad(self, **options)
        seen.append(self.param_groups[0]["params"][0].detach().clone())

    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", spy)
    recipe = write_recipe(tmp_path, "steps = 24", "steps = 8\naverage_last = 3")
    module = load(train(recipe, tmp_path / "out"))
    mean = torch.stack(seen[-3:]).mean(0)
    assert (mean - seen[-1]).abs().max() > 1e-3
    first = next(iter(module.parameters()))
    assert first.shape == mean.shape
    assert (first - mean.bfloat16().float()).abs().max() <= 2**-8 * mean.abs().max()


@pytest.mark.usefixtures("stdlib")
def test_without_a_folder_the_checkpoint_lies_beside_the_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "steps = 24", "steps = 5")
    assert train(recipe) == tmp_path
    assert (tmp_path / "model.safetensors").is_file()
