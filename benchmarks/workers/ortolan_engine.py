"""Worker for Ortolan, through its public interface only."""

import time

import ortolan
from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load a bundle for the CPU."""
    engine = ortolan.load(start.model, device="cpu", threads=start.threads)

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        begun = time.perf_counter()
        done = engine.generate(prompt, max_new_tokens=new_tokens, ignore_eos=True)
        total = time.perf_counter() - begun
        # Measured from outside, to include what Ortolan's own timings leave out.
        first = done.timings.time_to_first_token_s
        return Generated(tokens=list(done.tokens), prefill_s=first, decode_s=total - first)

    return Engine(generate=generate, logits=engine.logits)


if __name__ == "__main__":
    serve(load)
