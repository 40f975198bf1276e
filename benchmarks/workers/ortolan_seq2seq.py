"""Worker for a translator's bundle, through Ortolan's public interface only."""

import ortolan
from ortolan.runtime import Seq2Seq
from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a bundle for the CPU."""
    model = ortolan.load(start.model, Seq2Seq, device="cpu", threads=start.threads)

    def translate(sources: list[str], beams: int, new_tokens: int) -> list[str]:
        done = model.generate(sources, beams=beams, max_new_tokens=new_tokens)
        return [completion.text for completion in done]

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
