"""The worker that runs a translator's bundle. Uses only what the package promises to its users."""

import ortolan
from ortolan.runtime import Seq2Seq
from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a bundle for the CPU."""
    model = ortolan.load(start.model, Seq2Seq, device="cpu", threads=start.threads)

    def translate(sources: list[list[int]], beams: int, new_tokens: int) -> list[list[int]]:
        done = model.generate(sources, beams=beams, max_new_tokens=new_tokens)
        special = {*model.manifest.tokens.eos, model.manifest.tokens.pad}
        return [[token for token in each.tokens if token not in special] for each in done]

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
