"""The worker that runs Ortolan. Uses only what the package promises to its users."""

import time
from pathlib import Path

import ortolan
from workers.protocol import Generate, Generated, serve


def load(model: Path, threads: int) -> Generate:
    """Load a bundle for the CPU."""
    engine = ortolan.load(model, device="cpu", threads=threads)

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        start = time.perf_counter()
        done = engine.generate(prompt, max_new_tokens=new_tokens, ignore_eos=True)
        total = time.perf_counter() - start
        # By the clock out here, so that what Ortolan's own timings leave out is counted too.
        first = done.timings.time_to_first_token_s
        return Generated(tokens=list(done.tokens), prefill_s=first, decode_s=total - first)

    return generate


if __name__ == "__main__":
    serve(load)
