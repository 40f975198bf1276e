"""Recipes, the text they learn from, a training of seconds, and how it is measured."""

import json
import math
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.modeling.tiny_models import assert_same_logits, reference_logits
from transformers import AutoModelForCausalLM

from ortolan.modeling import ConfigError, Decoder, load
from ortolan.modeling.checkpoint import config_from_hf
from ortolan.modeling.corpus import Corpus, encode, read_corpus, train_tokenizer
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.evaluation import bits_per_byte, xz_bits_per_byte
from ortolan.modeling.recipe import DataRecipe, OptimizerRecipe, TokenizerRecipe, read_recipe
from ortolan.modeling.training import learning_rate, train

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
    assert recipe.data.held_out == ("held",)
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "models").glob("*/*.toml")))
def test_the_recipes_of_this_repository_are_read(path: Path) -> None:
    recipe = read_recipe(path)
    config = config_from_hf({"vocab_size": recipe.tokenizer.vocab_size, **recipe.model})
    assert recipe.training.sequence_length <= config.context_length


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
        ('source = "stdlib"', 'source = "web"', "Invalid enum value 'web'"),
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


def test_without_warm_up_the_learning_rate_starts_at_its_peak() -> None:
    assert learning_rate(optimizer(warmup_steps=0), 0) == 2.0


# --- text ---------------------------------------------------------------------------------------


def test_a_corpus_is_the_files_that_the_recipe_names(stdlib: Path) -> None:
    recipe = DataRecipe(source="stdlib", held_out=("held",), exclude=("vendored/*",))
    corpus = read_corpus(recipe)
    texts = [(stdlib / name).read_text() for name in ("a.py", "package/b.py", "held/c.py")]
    assert corpus == Corpus(train=tuple(texts[:2]), held_out=(texts[2],))
    assert corpus.held_out_bytes == len(texts[2])


def test_a_folder_that_only_begins_with_the_name_is_not_held_out(stdlib: Path) -> None:
    (stdlib / "heldover").mkdir()
    (stdlib / "heldover/f.py").write_text("x = 1\n")
    recipe = DataRecipe(source="stdlib", held_out=("held",), exclude=())
    assert "x = 1\n" in read_corpus(recipe).train


def test_a_document_is_its_text_behind_the_special_token() -> None:
    texts = (LINE * 5, "naïve 漢字\n")
    tokenizer = train_tokenizer(TokenizerRecipe(vocab_size=280), texts)
    end = tokenizer.token_to_id("<|endoftext|>")
    for ids, text in zip(encode(tokenizer, texts, "<|endoftext|>"), texts, strict=True):
        assert ids[0] == end
        assert end not in ids[1:]
        assert tokenizer.decode(ids[1:]) == text
    with pytest.raises(RecipeError, match="expected the token '<s>'"):
        encode(tokenizer, texts, "<s>")


# --- measurement --------------------------------------------------------------------------------


@pytest.fixture
def small_model() -> Decoder:
    torch.manual_seed(0)
    recipe: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    return Decoder(config_from_hf(recipe))


def document(length: int) -> list[int]:
    return torch.randint(50, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def test_bits_per_byte_of_one_window_is_the_cross_entropy(small_model: Decoder) -> None:
    documents = [document(12), document(5)]
    nats = 0.0
    for ids in documents:
        logits = small_model(torch.tensor([ids]))[0].detach().double()
        for position, token in enumerate(ids[1:]):
            nats -= float(logits[position].log_softmax(-1)[token])
    measured = bits_per_byte(small_model, documents, 37, window=16)
    assert measured == pytest.approx(nats / math.log(2) / 37)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 9, 17, 30])
def test_every_token_but_the_first_is_predicted_once(length: int, window: int) -> None:
    # A model without an opinion pays log2(50) bits for each token it is asked about.
    class Indifferent(Decoder):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            assert input_ids.shape[1] <= window
            return torch.zeros(*input_ids.shape, 50)

    bits = bits_per_byte(Indifferent(), [document(length)], 1, window=window)
    assert bits == pytest.approx(max(length - 1, 0) * math.log2(50))


def test_overlapping_windows_see_at_least_half_a_window(small_model: Decoder) -> None:
    ids, window = document(20), 8
    nats = 0.0
    for target in range(1, 20):
        # 1 to 8 in the first window, then four more in each that starts four later.
        start = 0 if target <= window else 4 * math.ceil((target - window) / 4)
        assert target - start >= min(target, window // 2)
        logits = small_model(torch.tensor([ids[start:target]]))[0, -1].detach()
        nats += float(F.cross_entropy(logits, torch.tensor(ids[target])))
    measured = bits_per_byte(small_model, [ids], 1, window=window)
    assert measured == pytest.approx(nats / math.log(2), rel=1e-5)


def test_xz_needs_less_for_all_files_than_for_each() -> None:
    single, together = xz_bits_per_byte([LINE * 10, LINE * 12])
    assert 0 < together < single


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
def test_without_a_folder_the_checkpoint_lies_beside_the_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "steps = 24", "steps = 5")
    assert train(recipe) == tmp_path
    assert (tmp_path / "model.safetensors").is_file()
