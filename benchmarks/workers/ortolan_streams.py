"""Worker for Ortolan's service: `mode=exact` or `mode=fast`, `slots=N`."""

from typing import Literal

import ortolan
from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a bundle for the CPU and serve it as long as the worker runs."""
    model = ortolan.load(start.model, device="cpu", threads=start.threads)
    assert isinstance(model, ortolan.Decoder)
    mode: Literal["exact", "fast"] = "exact" if start.options["mode"] == "exact" else "fast"
    # Every round repeats its prompts, which the prefix cache would skip.
    service = model.serve(slots=int(start.options["slots"]), mode=mode, cache_bytes=0)

    def together(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        tickets = [
            service.submit(prompt, max_new_tokens=new_tokens, ignore_eos=True) for prompt in prompts
        ]
        return [list(ticket.result().tokens) for ticket in tickets]

    return Engine(together=together)


if __name__ == "__main__":
    serve(load)
