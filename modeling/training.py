"""The small trainer that the recipes in `models/` use: one process, one processor.

Knows no file formats: `checkpoint.py` writes the model, `corpus.py` reads the text.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from ortolan.modeling.checkpoint import config_from_hf, save
from ortolan.modeling.config import TransformerConfig
from ortolan.modeling.corpus import Corpus, encode, read_corpus, train_tokenizer
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.evaluation import bits_per_byte, xz_bits_per_byte
from ortolan.modeling.recipe import OptimizerRecipe, Recipe, read_recipe
from ortolan.modeling.transformer import Decoder


def train(recipe_path: str | Path, out: str | Path | None = None) -> Path:
    """Train the model of a recipe and write its checkpoint.

    The folder then holds config.json, model.safetensors (bf16), tokenizer.json,
    generation_config.json, loss.png, and training.json with every figure of the run.

    Args:
        recipe_path: the recipe.
        out: the folder; the recipe's own by default.

    Returns:
        The folder.

    Raises:
        RecipeError: the recipe is wrong, or this machine lacks what it asks for.
        ConfigError: the recipe's model is not one that Ortolan has.
    """
    path = Path(recipe_path)
    folder = Path(out) if out is not None else path.parent
    recipe = read_recipe(path)
    _check(recipe)
    torch.manual_seed(recipe.training.seed)
    corpus = read_corpus(recipe.data)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.tokenizer, corpus.train)
    tokenizer.save(str(folder / "tokenizer.json"))
    module = _initialised(recipe, tokenizer)
    run = _Run(recipe, module, tokenizer, corpus, folder)
    run.train()
    run.finish()
    return folder


def _check(recipe: Recipe) -> None:
    """Raise RecipeError or ConfigError, before any work, for what would fail later."""
    training = recipe.training
    if training.compile and not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        raise RecipeError(
            "training.compile: expected a C++ compiler on PATH, got none. "
            "Install g++ or set compile = false."
        )
    if training.warmup_steps >= training.steps:
        raise RecipeError(
            f"training: expected warmup_steps below steps, got {training.warmup_steps} "
            f"and {training.steps}. Correct one of them."
        )
    config = _config(recipe, vocab_size=recipe.tokenizer.vocab_size, end=0)
    if training.sequence_length > config.context_length:
        raise RecipeError(
            f"training: expected sequence_length up to the model's {config.context_length}, "
            f"got {training.sequence_length}. Correct one of them."
        )


def _config(recipe: Recipe, *, vocab_size: int, end: int | None) -> TransformerConfig:
    """The recipe's model for a tokenizer of `vocab_size` ids, one of them the end of a text."""
    special = {"bos_token_id": end, "eos_token_id": end}
    return config_from_hf({"vocab_size": vocab_size, **special, **recipe.model})


def _initialised(recipe: Recipe, tokenizer: Tokenizer) -> Decoder:
    """A fresh model: normal weights, residual projections smaller with depth (GPT-2)."""
    end = tokenizer.token_to_id(recipe.tokenizer.end_of_text)
    config = _config(recipe, vocab_size=tokenizer.get_vocab_size(), end=end)
    module = Decoder(config)
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            is_residual = name.endswith((".out.weight", ".down.weight"))
            depth = 2 * len(config.blocks) if is_residual else 1
            nn.init.normal_(parameter, std=0.02 / math.sqrt(depth))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def learning_rate(recipe: OptimizerRecipe, step: int) -> float:
    """The rate of a step, from 0: linear warm-up, then a cosine towards zero."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / (recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class _Run:
    """One training: the model, its data, and the figures so far."""

    def __init__(
        self, recipe: Recipe, module: Decoder, tokenizer: Tokenizer, corpus: Corpus, folder: Path
    ) -> None:
        end_of_text = recipe.tokenizer.end_of_text
        documents = encode(tokenizer, corpus.train, end_of_text)
        self.tokens = torch.tensor([i for ids in documents for i in ids], dtype=torch.int32)
        if len(self.tokens) < recipe.training.sequence_length + 2:
            raise RecipeError(
                f"training: expected sequence_length below the {len(self.tokens)} tokens of the "
                f"text, got {recipe.training.sequence_length}. Learn from more files."
            )
        self.held_out = encode(tokenizer, corpus.held_out, end_of_text)
        self.recipe, self.module, self.corpus, self.folder = recipe, module, corpus, folder
        self.losses: list[float] = []
        self.measured: list[tuple[int, float]] = []
        self.seconds = 0.0

    def train(self) -> None:
        """Take every step, measuring and saving on the way."""
        recipe = self.recipe.training
        optimizer = _adamw(self.module, recipe)
        loss_of = _loss_function(self.module, recipe)
        batches = self._batches()
        for step in tqdm(range(recipe.steps), desc="train", unit="step", smoothing=0.05):
            started = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step)
            loss = loss_of(next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.losses.append(float(loss.detach()))
            self.seconds += time.monotonic() - started
            if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps:
                self.measure(step + 1)

    def measure(self, step: int) -> None:
        """Bits per byte on the held-out files; the checkpoint so far is kept."""
        window = self.recipe.training.sequence_length
        bits = bits_per_byte(self.module, self.held_out, self.corpus.held_out_bytes, window=window)
        self.measured.append((step, bits))
        tqdm.write(f"step {step}: loss {self.losses[-1]:.3f}, held out {bits:.4f} bits per byte")
        save(self.module, self.folder, dtype=torch.bfloat16)

    def finish(self) -> None:
        """Write the figures, the curve and the defaults of generation."""
        # The checkpoint is what users get, so its rounded weights are what is measured.
        for parameter in self.module.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).float()
        self.measure(self.recipe.training.steps)
        config, recipe = self.module.config, self.recipe.training
        single, together = xz_bits_per_byte(self.corpus.held_out)
        figures = {
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "train_tokens": len(self.tokens),
            "tokens_seen": recipe.steps * recipe.batch_size * recipe.sequence_length,
            "training_seconds": round(self.seconds),
            "train_loss": sum(self.losses[-100:]) / len(self.losses[-100:]),
            "held_out_files": len(self.corpus.held_out),
            "held_out_bytes": self.corpus.held_out_bytes,
            "held_out_tokens": sum(len(ids) - 1 for ids in self.held_out),
            "held_out_bits_per_byte": self.measured[-1][1],
            "xz_bits_per_byte_by_file": single,
            "xz_bits_per_byte_together": together,
            "measured": self.measured,
        }
        _write_json(self.folder / "training.json", figures)
        _write_json(
            self.folder / "generation_config.json",
            {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)},
        )
        draw_losses(self.losses, self.measured, self.folder / "loss.png")

    def _batches(self) -> Iterator[Tensor]:
        """Windows from anywhere in the text, `(B, S + 1)`, without end."""
        recipe = self.recipe.training
        generator = torch.Generator().manual_seed(recipe.seed)
        span = torch.arange(recipe.sequence_length + 1)
        while True:
            last = len(self.tokens) - recipe.sequence_length - 1
            starts = torch.randint(last, (recipe.batch_size, 1), generator=generator)
            yield self.tokens[starts + span].long()


def _adamw(module: nn.Module, recipe: OptimizerRecipe) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in module.parameters() if p.dim() >= 2]
    vectors = [p for p in module.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )


def _loss_function(module: Decoder, recipe: OptimizerRecipe) -> Callable[[Tensor], Tensor]:
    """Mean next-token cross-entropy of windows `(B, S + 1)`."""

    def loss(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            logits = module(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    return torch.compile(loss) if recipe.compile else loss


def draw_losses(losses: list[float], measured: list[tuple[int, float]], path: Path) -> None:
    """A picture of the training loss and the held-out bits per byte."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, left = pyplot.subplots(figsize=(7, 4), layout="constrained")
    left.plot(range(1, len(losses) + 1), losses, color="tab:blue", linewidth=0.6)
    left.set(xlabel="step", ylabel="training loss (nats per token)")
    right = left.twinx()
    right.plot(*zip(*measured, strict=True), color="tab:red", marker="o")
    right.set_ylabel("held out (bits per byte)", color="tab:red")
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
