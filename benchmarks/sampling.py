"""Time to sample a token from one row of logits.

    python benchmarks/sampling.py
    python benchmarks/sampling.py --bundle build/pythonic

Rows are random, with probabilities that fall as rank to the power -1.2, or a bundle's logits for a
text. Prints median microseconds.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import Decoder, Sampling, load
from ortolan.runtime.generation.sampling import Sampler

SIZES = (32_000, 128_256, 256_000)
ROWS = 32
TEXT = Path(__file__).parents[1] / "README.md"
CHOICES = {
    "likeliest": Sampling(),
    "temperature 1": Sampling(temperature=1.0, seed=1),
    "top-p 0.9": Sampling(temperature=1.0, top_p=0.9, seed=1),
    "top-p 0.9, 0.7": Sampling(temperature=0.7, top_p=0.9, seed=1),
    "top-p 0.99": Sampling(temperature=1.0, top_p=0.99, seed=1),
    "min-p 0.05": Sampling(temperature=1.0, min_p=0.05, seed=1),
    "top-k 40": Sampling(temperature=1.0, top_k=40, seed=1),
}
"""The second number is a temperature other than 1."""


def random_rows(size: int) -> NDArray[np.float32]:
    """Random logits with a realistic distribution, `(ROWS, size)`."""
    random = np.random.default_rng(size)
    falling = -1.2 * np.log(np.arange(1, size + 1)) + random.normal(0, 0.3, (ROWS, size))
    return random.permuted(falling, axis=1).astype(np.float32)


def rows_of(bundle: Path) -> NDArray[np.float32]:
    """Logits of a bundle for a text, `(ROWS, V)`."""
    model = load(bundle, Decoder, threads=1)
    if model.tokenizer is None:
        raise SystemExit("error: this bundle has no tokenizer")
    ids = model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return model.logits(ids[: 4 * ROWS])[::4]


def microseconds(rows_BV: NDArray[np.float32], choice: Sampling) -> float:
    """Median time to sample a token."""
    sampler, times = Sampler(choice, rows_BV.shape[1]), []
    for _ in range(3):
        for row_V in rows_BV:
            begun_at = time.perf_counter()
            sampler.next(row_V)
            times.append(time.perf_counter() - begun_at)
    return 1e6 * median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the time to sample a token.")
    parser.add_argument("--bundle", type=Path, help="use the logits of this bundle")
    bundle = parser.parse_args(arguments).bundle
    batches = [rows_of(bundle)] if bundle else [random_rows(size) for size in SIZES]
    print("| |" + "".join(f" {rows_BV.shape[1]} |" for rows_BV in batches))
    print("|---|" + "---|" * len(batches))
    for name, choice in CHOICES.items():
        times = [microseconds(rows_BV, choice) for rows_BV in batches]
        print(f"| {name} |" + "".join(f" {time:.0f} us |" for time in times))


if __name__ == "__main__":
    main()
