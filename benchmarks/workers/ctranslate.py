"""Worker for CTranslate2 with a converted translator."""

import ctranslate2  # type: ignore[import-not-found]
from tokenizers import Tokenizer

from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a converted model; `compute_type` is a worker option."""
    translator = ctranslate2.Translator(
        str(start.model),
        device="cpu",
        compute_type=start.options["compute_type"],
        inter_threads=1,
        intra_threads=start.threads,
    )
    tokenizer = Tokenizer.from_file(str(start.model / "tokenizer.json"))
    ids = tokenizer.get_vocab()

    def translate(sources: list[str], beams: int, new_tokens: int) -> list[str]:
        # CTranslate2 uses token strings instead of ids.
        tokens = [tokenizer.encode(source).tokens for source in sources]
        results = translator.translate_batch(
            tokens, beam_size=beams, max_decoding_length=new_tokens
        )
        return [tokenizer.decode([ids[t] for t in result.hypotheses[0]]) for result in results]

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
