"""Train the checkpoint of this folder, in `models`: python -m spoken.train [OUT]."""

import argparse
import json
import math
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from .phrases import RATE, Spoken, Timed, all_phrases, recording, spoken

HERE = Path(__file__).parent

STEPS, BATCH, LEARNING_RATE, WARMUP = 3000, 32, 1.2e-3, 150

PHRASES = 12_000
"""Spoken before the training, and placed anew in every recording."""

SECONDS, BINS, STEP = 4, 40, 0.02
"""Length of a window, mel bins, and seconds from one time to the next."""

VECTORS = round(SECONDS / STEP)

EOS, START, NO_TIMES = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"

TEXT_ALONE = 0.15
"""Share of examples without times."""

ALIGNMENT = 0.3
"""Weight of the loss by which the encoder alone names the words in order (CTC, Graves 2006)."""


def tokenizer_of(texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE in which every word is one token, and times come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([f" {text}" for text in texts], trainer)
    tokenizer.add_special_tokens([EOS, START, NO_TIMES])
    times = [f"<|{STEP * step:.2f}|>" for step in range(VECTORS + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
    return tokenizer


def model_of(tokenizer: Tokenizer) -> Any:
    """A Whisper with 3 layers in the encoder and 2 in the decoder."""
    eos, start = token_of(tokenizer, EOS), token_of(tokenizer, START)
    sizes: dict[str, Any] = {
        f"{side}_{name}": value
        for side, layers in (("encoder", 3), ("decoder", 2))
        for name, value in (("layers", layers), ("attention_heads", 4), ("ffn_dim", 384))
    }
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=128,
        num_mel_bins=BINS,
        max_source_positions=VECTORS,
        max_target_positions=64,
        bos_token_id=eos,
        eos_token_id=eos,
        pad_token_id=eos,
        decoder_start_token_id=start,
        begin_suppress_tokens=None,
        **sizes,
    )
    return WhisperForConditionalGeneration(config)


def extractor_of() -> Any:
    """Spectrograms of one window."""
    extract: Any = WhisperFeatureExtractor
    return extract(feature_size=BINS, sampling_rate=RATE, chunk_length=SECONDS)


def token_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    return int(tokenizer.get_vocab()[token])


class Examples:
    """Windows of recordings, and what the decoder writes."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[Spoken], seed: int) -> None:
        self._tokenizer, self._phrases = tokenizer, phrases
        self._random = np.random.default_rng(seed)
        self._first_time = token_of(tokenizer, "<|0.00|>")

    def batch(self, count: int) -> tuple[NDArray[np.float32], list[list[int]], list[list[int]]]:
        """Samples `(count, N)`, texts with their start, and the words alone."""
        drawn = [self._example() for _ in range(count)]
        return (
            np.stack([samples for samples, _, _ in drawn]),
            [text for _, text, _ in drawn],
            [words for _, _, words in drawn],
        )

    def _example(self) -> tuple[NDArray[np.float32], list[int], list[int]]:
        random = self._random
        count = int(random.choice([0, 1, 3], p=[0.03, 0.35, 0.62]))
        chosen = [
            self._phrases[int(number)] for number in random.integers(0, len(self._phrases), count)
        ]
        has_times = count != 1 or random.random() >= TEXT_ALONE
        samples, timed = recording(chosen, random)
        size = SECONDS * RATE
        window = np.pad(samples, (0, max(0, size - len(samples))))[:size]
        ids, words = self._written(timed, has_times=has_times)
        return window.astype(np.float32), ids, words

    def _written(self, timed: Sequence[Timed], *, has_times: bool) -> tuple[list[int], list[int]]:
        """The text of a window, and its words. A phrase that is cut off has only its begin."""
        start = token_of(self._tokenizer, START)
        eos = token_of(self._tokenizer, EOS)
        written: list[int] = [] if has_times else [token_of(self._tokenizer, NO_TIMES)]
        words: list[int] = []
        for text, begin, end in timed:
            ids = list(self._tokenizer.encode(f" {text}").ids)
            if end <= SECONDS:
                written += [self._time(begin), *ids, self._time(end)] if has_times else ids
                words += ids
            elif begin < SECONDS - 0.2 and written:
                written.append(self._time(begin))
        if has_times and not written:
            written.append(self._first_time)
        return [start, *written, eos], words

    def _time(self, seconds: float) -> int:
        return int(self._first_time + round(seconds / STEP))


def rate(step: int) -> float:
    """The learning rate of a step: linear warm-up, then a cosine."""
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def padded(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    """Rows of any lengths as `(B, longest)`."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])


def losses(
    model: Any,
    aligner: nn.Linear,
    mel: torch.Tensor,
    texts: list[list[int]],
    words: list[list[int]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of the next tokens, and of the words by the encoder alone."""
    ids = padded(texts, model.config.eos_token_id)
    labels = padded([text[1:] for text in texts], -100)
    out = model(input_features=mel, decoder_input_ids=ids[:, :-1])
    written = F.cross_entropy(out.logits.transpose(1, 2), labels, ignore_index=-100)
    scores = aligner(out.encoder_last_hidden_state).log_softmax(-1).transpose(0, 1)
    lengths = torch.tensor([len(own) for own in words])
    targets = torch.tensor([token for own in words for token in own])
    heard = torch.full((len(words),), len(scores))
    blank = model.config.eos_token_id
    return written, F.ctc_loss(scores, targets, heard, lengths, blank=blank, zero_infinity=True)


def main(out: Path) -> None:
    """Train and write the checkpoint."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of(all_phrases())
    model, extractor = model_of(tokenizer), extractor_of()
    aligner = nn.Linear(model.config.d_model, model.config.vocab_size)
    began = time.monotonic()
    phrases = list(islice(spoken(0), PHRASES))
    print(f"{PHRASES} phrases spoken in {time.monotonic() - began:.0f} s", flush=True)
    data = Examples(tokenizer, phrases, 1)
    parameters = [*model.parameters(), *aligner.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    history: list[tuple[float, float]] = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        samples, texts, words = data.batch(BATCH)
        mel = torch.from_numpy(extractor._torch_extract_fbank_features(samples, "cpu"))
        written, aligned = losses(model, aligner, mel, texts, words)
        loss: Any = written + ALIGNMENT * aligned
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append((written.item(), aligned.item()))
        if step % 50 == 49:
            means = np.mean(history[-50:], 0)
            spent = time.monotonic() - began
            print(
                f"step {step + 1}: {means[0]:.4f}, aligned {means[1]:.4f}, {spent:.0f} s",
                flush=True,
            )
        if step % 500 == 499:
            write(out, model, tokenizer, extractor)
    figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_seconds": round(time.monotonic() - began),
        "examples": STEPS * BATCH,
        "train_loss": round(float(np.mean(history[-100:], 0)[0]), 4),
    }
    (out / "training.json").write_text(json.dumps(figures, indent=2) + "\n")


def write(out: Path, model: Any, tokenizer: Tokenizer, extractor: Any) -> None:
    """Write the checkpoint as transformers reads it."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    extractor.save_pretrained(out)
    special = {"bos_token": EOS, "eos_token": EOS, "pad_token": EOS}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    eos = token_of(tokenizer, EOS)
    generation = {
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "decoder_start_token_id": token_of(tokenizer, START),
        "no_timestamps_token_id": token_of(tokenizer, NO_TIMES),
        "is_multilingual": False,
        "max_length": model.config.max_target_positions,
        "return_timestamps": False,
    }
    for name, values in (("tokenizer_config", settings), ("generation_config", generation)):
        (out / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE)
    main(parser.parse_args().out)
