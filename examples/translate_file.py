"""Translate a text file line by line, many lines at once.

    ortolan export models/numerals build/numerals
    python examples/translate_file.py build/numerals english.txt french.txt

The lines keep their order; empty ones stay empty.
"""

import argparse
from pathlib import Path

import ortolan


def main() -> None:
    """Translate the lines that are not empty."""
    parser = argparse.ArgumentParser(description="Translate a text file line by line.")
    parser.add_argument("bundle", help="of an encoder-decoder")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--beams", type=int, default=1, help="number of beams; 4 is often better")
    args = parser.parse_args()
    model = ortolan.load(args.bundle, ortolan.Seq2Seq)
    lines = args.source.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.strip()]
    completions = (
        model.generate(texts, beams=args.beams) if args.beams > 1 else model.generate(texts)
    )
    translated = iter(completions)
    args.out.write_text(
        "".join(f"{next(translated).text if line.strip() else ''}\n" for line in lines),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
