"""Train the checkpoint of this folder, in `models`: python -m spoken.train [OUT]."""

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from torch import nn
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from fitting import fit, write
from ortolan.modeling.training.recipe import OptimizerRecipe
from ortolan.modeling.training.tokenizer import byte_level_bpe, id_of, padded

from .phrases import RATE, Spoken, Timed, all_phrases, recording, spoken

HERE = Path(__file__).parent

RECIPE = OptimizerRecipe(
    steps=3000,
    batch_size=32,
    learning_rate=1.2e-3,
    warmup_steps=150,
    beta2=0.98,
    weight_decay=0.01,
)

PHRASES = 12_000
"""Phrases spoken before the training, and placed anew in every recording."""

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
    tokenizer = byte_level_bpe([f" {text}" for text in texts], vocab_size=420, special_tokens=[])
    tokenizer.add_special_tokens([EOS, START, NO_TIMES])
    times = [f"<|{STEP * step:.2f}|>" for step in range(VECTORS + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
    return tokenizer


def model_of(tokenizer: Tokenizer) -> Any:
    """A Whisper with 3 layers in the encoder and 2 in the decoder."""
    eos, start = id_of(tokenizer, EOS), id_of(tokenizer, START)
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


class Examples:
    """Windows of recordings, and what the decoder writes."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[Spoken], seed: int) -> None:
        self._tokenizer, self._phrases = tokenizer, phrases
        self._random = np.random.default_rng(seed)
        self._first_time = id_of(tokenizer, "<|0.00|>")

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
        start = id_of(self._tokenizer, START)
        eos = id_of(self._tokenizer, EOS)
        written: list[int] = [] if has_times else [id_of(self._tokenizer, NO_TIMES)]
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


def losses(
    model: Any,
    aligner: nn.Linear,
    mel: torch.Tensor,
    texts: list[list[int]],
    words: list[list[int]],
) -> list[torch.Tensor]:
    """The loss of the next tokens, and of the words by the encoder alone."""
    ids, _ = padded(texts, model.config.eos_token_id)
    labels, _ = padded([text[1:] for text in texts], -100)
    out = model(input_features=mel, decoder_input_ids=ids[:, :-1])
    written = F.cross_entropy(out.logits.transpose(1, 2), labels, ignore_index=-100)
    scores = aligner(out.encoder_last_hidden_state).log_softmax(-1).transpose(0, 1)
    lengths = torch.tensor([len(own) for own in words])
    targets = torch.tensor([token for own in words for token in own])
    heard = torch.full((len(words),), len(scores))
    blank = model.config.eos_token_id
    aligned = F.ctc_loss(scores, targets, heard, lengths, blank=blank, zero_infinity=True)
    return [written, ALIGNMENT * aligned]


def main(out: Path) -> None:
    """Train and write the checkpoint."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of(all_phrases())
    model, extract = model_of(tokenizer), cast(Any, WhisperFeatureExtractor)
    extractor = extract(feature_size=BINS, sampling_rate=RATE, chunk_length=SECONDS)
    aligner = nn.Linear(model.config.d_model, model.config.vocab_size)
    data = Examples(tokenizer, list(islice(spoken(0), PHRASES)), 1)

    def next_losses() -> list[torch.Tensor]:
        samples, texts, words = data.batch(RECIPE.batch_size)
        mel = torch.from_numpy(extractor._torch_extract_fbank_features(samples, "cpu"))
        return losses(model, aligner, mel, texts, words)

    figures = fit(model, RECIPE, next_losses, more=list(aligner.parameters()))
    special = {"bos_token": EOS, "eos_token": EOS, "pad_token": EOS}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    eos = id_of(tokenizer, EOS)
    generation = {
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "decoder_start_token_id": id_of(tokenizer, START),
        "no_timestamps_token_id": id_of(tokenizer, NO_TIMES),
        "is_multilingual": False,
        "max_length": model.config.max_target_positions,
        "return_timestamps": False,
    }
    write(
        out,
        model,
        tokenizer,
        {"tokenizer_config": settings, "generation_config": generation, "training": figures},
    )
    extractor.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE)
    main(parser.parse_args().out)
