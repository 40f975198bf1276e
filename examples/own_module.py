"""Your own language model: trained in a minute, exported, and run without PyTorch.

    python examples/own_module.py            # train, export in float32 and int4, and generate
    python examples/own_module.py --steps 50 # faster, but worse

The model uses no class of Ortolan. Its `forward(ids, state)` asks the state for everything that
crosses tokens, so it trains as plain PyTorch and exports unchanged. It deliberately resembles no
published model: a convolution over the last four tokens, a layer of narrow heads with a window of
32 tokens, a layer of wide heads with full attention, and a layer that reuses the keys of the layer
before it.

It learns from Python's own manual pages.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal, cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

import ortolan

VOCABULARY, CONTEXT, WIDTH = 1024, 256, 192
BATCH, LENGTH = 16, 128
END = "<|end|>"
PROMPT = "The with statement"


class Layer(nn.Module):
    """Attention and an MLP, each with a residual connection.

    Attributes:
        heads: number of query heads.
        kv_heads: number of key/value heads; 0 to use those of another layer.
        window: number of tokens to attend to; None for all.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.window = heads, kv_heads, window
        self.norm = nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, heads * head_dim, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * kv_heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(
        self, x: Tensor, state: ortolan.State, number: int, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        """`(B, S, WIDTH)` to `(B, S, WIDTH)`; `number` identifies the keys to attend to."""
        normed = self.norm(x)
        query = _heads(self.query(normed), self.heads)
        if self.kv_heads:
            both = _heads(self.key_value(normed), 2 * self.kv_heads)
            key, value = both[:, : self.kv_heads], both[:, self.kv_heads :]
            out = state.attend(number, query, key, value, rotary=rotary, window=self.window)
        else:
            out = state.attend(number, query, rotary=rotary)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x + cast(Tensor, self.mlp(x))


class LanguageModel(nn.Module):
    """Ids `(B, S)` to logits `(B, S, VOCABULARY)`."""

    context_length = CONTEXT

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.taps = nn.Parameter(torch.zeros(WIDTH, 4))
        self.layers = nn.ModuleList(
            [
                Layer(heads=6, kv_heads=3, head_dim=32, window=32),
                Layer(heads=3, kv_heads=1, head_dim=64, window=None),
                Layer(heads=3, kv_heads=0, head_dim=64, window=None),
            ]
        )
        self.norm = nn.RMSNorm(WIDTH)
        for dim in (32, 64):
            cos, sin = _rotary(dim)
            self.register_buffer(f"cos_{dim}", cos, persistent=False)
            self.register_buffer(f"sin_{dim}", sin, persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        """Logits of the new tokens."""
        x = cast(Tensor, self.embedding(ids))
        x = x + state.convolve("recent", x.transpose(1, 2), self.taps).transpose(1, 2)
        keys_of, dims = (0, 1, 1), (32, 64, 64)
        for layer, number, dim in zip(self._layers, keys_of, dims, strict=True):
            rotary = self.get_buffer(f"cos_{dim}"), self.get_buffer(f"sin_{dim}")
            x = layer(x, state, number, rotary)
        return F.linear(self.norm(x), self.embedding.weight)

    @property
    def _layers(self) -> Iterable[Layer]:
        return cast(Iterable[Layer], self.layers)


def _heads(x: Tensor, count: int) -> Tensor:
    """`(B, S, count * D)` to `(B, count, S, D)`."""
    return torch.unflatten(x, -1, (count, -1)).transpose(1, 2)


def _rotary(dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions (Su et al. 2021), `(CONTEXT, dim / 2)` each."""
    rates = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(CONTEXT)[:, None] * rates
    return angles.cos(), angles.sin()


def make_tokenizer(text: str, folder: Path) -> Tokenizer:
    """Train a byte-level BPE tokenizer and write it with the generation defaults."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    (folder / "calibration.txt").write_text(text)
    return tokenizer


def train(model: LanguageModel, ids: Tensor, steps: int) -> None:
    """Train on next-token prediction."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    started = time.monotonic()
    for step in range(steps):
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH, 1))
        batch = ids[starts + torch.arange(LENGTH + 1)]
        logits = model(batch[:, :-1], ortolan.State.whole())
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s")


def main() -> None:
    """Train, export and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="training steps")
    parser.add_argument("--out", type=Path, default=Path("own-module"), help="output folder")
    args = parser.parse_args()
    torch.manual_seed(0)
    text = "\n\n".join(topics.values())
    tokenizer = make_tokenizer(text, args.out / "tokenizer")
    model = LanguageModel()
    train(model, torch.tensor(tokenizer.encode(text).ids), args.steps)
    precisions: tuple[Literal["fp32", "int4"], ...] = ("fp32", "int4")
    for precision in precisions:
        bundle = args.out / precision
        ortolan.export(
            model,
            bundle,
            precision=precision,
            options=ortolan.ExportOptions(tokenizer=args.out / "tokenizer"),
            force=True,
        )
        completion = ortolan.load(bundle, ortolan.Decoder).generate(PROMPT, max_new_tokens=60)
        print(f"\n{precision}: {PROMPT}{completion.text}")


if __name__ == "__main__":
    main()
