"""Label the rows of a CSV file with answers that follow a JSON schema.

    python examples/label_csv.py bundle/ reviews.csv labelled.csv --column text --schema schema.json

with a schema such as

    {
      "type": "object",
      "properties": {"verdict": {"enum": ["good", "bad"]}, "stars": {"enum": [1, 2, 3, 4, 5]}},
      "required": ["verdict", "stars"],
      "additionalProperties": false
    }

Each property becomes a column. A grammar allows the model no other answer, so nothing has to be
parsed leniently; whether the labels are right depends on the model and the prompt.
Needs `ortolan[grammar]`.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import ortolan


def main() -> None:
    """Read the rows, label them together, and write them."""
    parser = argparse.ArgumentParser(description="Label the rows of a CSV file.")
    parser.add_argument("bundle")
    parser.add_argument("source", type=Path, help="CSV file with a header")
    parser.add_argument("out", type=Path, help="CSV file to write")
    parser.add_argument("--column", required=True, help="column to label")
    parser.add_argument("--schema", type=Path, required=True, help="JSON schema of an answer")
    parser.add_argument("--prompt", default="{text}\nAs JSON: ", help="prompt around the text")
    args = parser.parse_args()
    with args.source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    schema = json.loads(args.schema.read_text(encoding="utf-8"))
    model = ortolan.load(args.bundle, ortolan.Decoder)
    completions = model.generate(
        [args.prompt.format(text=row[args.column]) for row in rows],
        max_new_tokens=256,
        grammar=ortolan.Grammar.json_schema(schema, whitespace=False),
    )
    for row, completion in zip(rows, completions, strict=True):
        if completion.finish_reason != "stop":  # cut off: the JSON is incomplete
            sys.exit(f"{row[args.column]!r}: the answer is too long; bound the schema's texts")
        row.update(json.loads(completion.text))
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
