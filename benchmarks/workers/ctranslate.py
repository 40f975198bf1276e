"""The worker that runs CTranslate2 on a converted translator."""

import ctranslate2  # type: ignore[import-not-found]
from tokenizers import Tokenizer

from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a converted model; `compute_type` is one of the options."""
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
        # It takes and gives the names of tokens.
        named = [tokenizer.encode(source).tokens for source in sources]
        done = translator.translate_batch(named, beam_size=beams, max_decoding_length=new_tokens)
        return [tokenizer.decode([ids[name] for name in each.hypotheses[0]]) for each in done]

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
