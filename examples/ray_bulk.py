"""Continue the lines of a large file on many processes or machines with Ray.

    pip install "ortolan[ray]"
    python examples/ray_bulk.py bundle/ prompts.txt completions/ --workers 4

Every machine needs the bundle, in the same folder. Ray reads the file in parts, each worker loads
the bundle once, and the folder gets JSON lines with `prompt` and `completion`.
"""

import argparse
from pathlib import Path

import ray.data

from ortolan.ray import Generate


def main() -> None:
    """Read prompts, generate, and write."""
    parser = argparse.ArgumentParser(description="Continue the lines of a file with Ray.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompts", type=Path, help="text file, a prompt per line")
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--workers", type=int, default=2, help="processes that load the bundle")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="longest completion")
    args = parser.parse_args()
    dataset = ray.data.read_text(str(args.prompts.absolute())).rename_columns({"text": "prompt"})
    completed = dataset.map_batches(
        Generate,
        fn_constructor_args=[str(args.bundle.absolute())],
        fn_constructor_kwargs={"max_new_tokens": args.max_new_tokens},
        batch_size=32,
        concurrency=args.workers,
    )
    completed.write_json(str(args.out.absolute()))


if __name__ == "__main__":
    main()
