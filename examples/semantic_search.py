"""Search lines of a file by meaning: embeddings find candidates, a reranker orders them.

    python examples/semantic_search.py embedder/ reranker/ notes.txt "how do I open a file?"

The embedder is exported from a sentence-transformers checkpoint, the reranker from a cross-encoder
with one label. The embedder computes one vector per line, so a large file is embedded once; the
reranker reads the query and a line together, which is slower and more accurate.
"""

import argparse
from pathlib import Path

import ortolan


def main() -> None:
    """Print the best lines, the best one first, with their scores."""
    parser = argparse.ArgumentParser(description="Search lines of a file by meaning.")
    parser.add_argument("embedder")
    parser.add_argument("reranker")
    parser.add_argument("file", type=Path, help="text file, a document per line")
    parser.add_argument("query")
    parser.add_argument("--candidates", type=int, default=20, help="lines to rerank")
    parser.add_argument("--top", type=int, default=3, help="lines to print")
    args = parser.parse_args()
    embedder = ortolan.load(args.embedder, ortolan.Encoder)
    reranker = ortolan.load(args.reranker, ortolan.Encoder)
    lines = [line for line in args.file.read_text(encoding="utf-8").splitlines() if line.strip()]

    similarities = embedder.embed(lines) @ embedder.embed([args.query])[0]
    candidates = [lines[n] for n in similarities.argsort()[::-1][: args.candidates]]
    results = reranker.classify([(args.query, line) for line in candidates], truncate=True)
    scored = zip((result.score for result in results), candidates, strict=True)
    for score, line in sorted(scored, reverse=True)[: args.top]:
        print(f"{score:.3f}\t{line}")


if __name__ == "__main__":
    main()
