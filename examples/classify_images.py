"""Name what is in image files, and list those that the model is unsure about.

    ortolan export models/digits build/digits
    python examples/classify_images.py build/digits scans/*.png

Needs `ortolan[vision]`. Images may have any size; the bundle knows how to prepare them.
"""

import argparse

import ortolan


def main() -> None:
    """Print file, label and probability of each image."""
    parser = argparse.ArgumentParser(description="Classify image files.")
    parser.add_argument("bundle", help="of an image classifier")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--sure", type=float, default=0.8, help="below it, list the runner-up too")
    args = parser.parse_args()
    results = ortolan.load(args.bundle, ortolan.Encoder).classify(args.files)
    for file, result in zip(args.files, results, strict=True):
        ranked = sorted(result.probabilities.items(), key=lambda item: item[1], reverse=True)
        shown = ranked[: 1 if result.probability >= args.sure else 2]
        print(file, *(f"{label} {probability:.2f}" for label, probability in shown), sep="\t")


if __name__ == "__main__":
    main()
