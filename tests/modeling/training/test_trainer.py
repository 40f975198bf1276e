"""Training by a recipe: errors, the learning rate, and a training of seconds."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.modeling.kinds import MIXERS, hybrid
from tests.modeling.tiny_models import LLAMA, assert_same_logits, reference_logits
from tests.modeling.training.recipes import LANGUAGE_MODEL, LINE, write_recipe
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from ortolan.modeling import DecoderModel, load
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.transformer import build
from ortolan.modeling.training.recipe import OptimizerRecipe
from ortolan.modeling.training.tasks.language_model import bits_per_byte
from ortolan.modeling.training.tasks.task import SKIPPED, initialise
from ortolan.modeling.training.tokenizer import byte_level_bpe, encode
from ortolan.modeling.training.trainer import learning_rate, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return train(write_recipe(folder, LANGUAGE_MODEL), folder / "out")


def test_compiling_without_a_compiler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    recipe = write_recipe(tmp_path, LANGUAGE_MODEL, "steps = 24", "steps = 24\ncompile = true")
    with pytest.raises(RecipeError, match=r"C\+\+ compiler"):
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
    assert learning_rate(optimizer(warmup_steps=0), 0) == 2.0


def test_the_inverse_square_root_schedule_equals_the_paper() -> None:
    recipe = optimizer(schedule="inverse_sqrt", learning_rate=(512 * 10) ** -0.5)
    for step in range(1, 101):
        published = 512**-0.5 * min(step**-0.5, step * 10**-1.5)
        assert learning_rate(recipe, step - 1) == pytest.approx(published)


# --- a training of seconds ----------------------------------------------------------------------


def test_a_training_writes_a_checkpoint_that_learned(trained: Path) -> None:
    folder = trained
    assert {path.name for path in folder.iterdir()} == {
        "calibration.txt",
        "config.json",
        "generation_config.json",
        "loss.png",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    assert figures["lines"] == 20  # of the data module
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


def test_figures_are_those_of_the_saved_weights(trained: Path) -> None:
    figures = json.loads((trained / "training.json").read_text())
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    documents = encode(tokenizer, [LINE] * 3, "<|endoftext|>")
    measured = bits_per_byte(load(trained), documents, 3 * len(LINE), window=32)
    assert measured == pytest.approx(figures["held_out_bits_per_byte"], rel=1e-6)


def test_the_same_recipe_gives_the_same_model(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, LANGUAGE_MODEL, "steps = 24", 'steps = 6\nprecision = "bf16"')
    one, other = (train(recipe, tmp_path / name) for name in ("one", "other"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_the_mean_of_the_last_weights_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history: list[torch.Tensor] = []
    zero_grad = torch.optim.AdamW.zero_grad

    def spy(self: torch.optim.AdamW, **options: bool) -> None:
        zero_grad(self, **options)
        history.append(self.param_groups[0]["params"][0].detach().clone())

    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", spy)
    recipe = write_recipe(tmp_path, LANGUAGE_MODEL, "steps = 24", "steps = 8\naverage_last = 3")
    module = load(train(recipe, tmp_path / "out"))
    mean = torch.stack(history[-3:]).mean(0)
    assert (mean - history[-1]).abs().max() > 1e-3
    first = next(iter(module.parameters()))
    assert first.shape == mean.shape
    assert (first - mean.bfloat16().float()).abs().max() <= 2**-8 * mean.abs().max()


def test_the_default_folder_is_that_of_the_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, LANGUAGE_MODEL, "steps = 24", "steps = 5")
    assert train(recipe) == tmp_path
    assert (tmp_path / "model.safetensors").is_file()


# --- tokenizer and first weights -----------------------------------------------------------------


def test_a_document_is_the_special_token_and_the_text() -> None:
    texts = (LINE * 5, "naïve 漢字\n")
    tokenizer = byte_level_bpe(texts, vocab_size=280, special_tokens=["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    for ids, text in zip(encode(tokenizer, texts, "<|endoftext|>"), texts, strict=True):
        assert ids[0] == end
        assert end not in ids[1:]
        assert tokenizer.decode(ids[1:]) == text
    with pytest.raises(RecipeError, match="<s>"):
        encode(tokenizer, texts, "<s>")


def test_no_token_spans_two_pieces() -> None:
    tokenizer = byte_level_bpe(
        ["year 2023 2023 2023 2023"] * 9, vocab_size=400, special_tokens=[], pieces=r" ?[a-z]+|\d| "
    )
    assert tokenizer.encode("year 2023").tokens == ["year", "Ġ", "2", "0", "2", "3"]


def test_an_invalid_regular_expression_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"tokenizer\.pieces"):
        byte_level_bpe([LINE], vocab_size=400, special_tokens=[], pieces="(")


@pytest.mark.parametrize("name", ["gated-delta", "state-space-channels", "linear-recurrence"])
def test_decay_rates_keep_their_initial_values(name: str) -> None:
    module = build(hybrid(MIXERS[name]))
    before = {key: value.clone() for key, value in module.named_parameters()}

    initialise(module, layers=6)

    unchanged = [key for key in before if key.rpartition(".")[2] in SKIPPED]
    assert unchanged
    after = dict(module.named_parameters())
    assert all(torch.equal(before[key], after[key]) for key in unchanged)
    assert not torch.equal(before["embedding.weight"], after["embedding.weight"])


# --- bits per byte ------------------------------------------------------------------------------


@pytest.fixture
def small_model() -> DecoderModel:
    torch.manual_seed(0)
    return DecoderModel(config_from_hf(LLAMA | {"vocab_size": 50}))


def document(length: int) -> list[int]:
    return torch.randint(50, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def test_bits_per_byte_of_one_window_is_the_cross_entropy(small_model: DecoderModel) -> None:
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
    # A uniform prediction costs log2(50) bits per token.
    class Uniform(DecoderModel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            assert input_ids.shape[1] <= window
            return torch.zeros(*input_ids.shape, 50)

    bits = bits_per_byte(Uniform(), [document(length)], 1, window=window)
    assert bits == pytest.approx(max(length - 1, 0) * math.log2(50))


def test_overlapping_windows_see_at_least_half_a_window(small_model: DecoderModel) -> None:
    ids, window = document(20), 8
    nats = 0.0
    for target in range(1, 20):
        # The first window predicts tokens 1 to 8, and each window after it, 4 tokens on, 4 more.
        start = 0 if target <= window else 4 * math.ceil((target - window) / 4)
        assert target - start >= min(target, window // 2)
        logits = small_model(torch.tensor([ids[start:target]]))[0, -1].detach()
        nats += float(F.cross_entropy(logits, torch.tensor(ids[target])))
    measured = bits_per_byte(small_model, [ids], 1, window=window)
    assert measured == pytest.approx(nats / math.log(2), rel=1e-5)
