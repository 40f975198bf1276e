"""Generates greedily with onnxruntime-genai; run by its own Python, which has no Ortolan.

    python genai_generate.py FOLDER COUNT PROMPT...

Prints a JSON object: the ids of each prompt, and the new tokens of each row.
"""

import json
import sys

import onnxruntime_genai as og


def main() -> None:
    """Generate one batch."""
    folder, count, *prompts = sys.argv[1:]
    model = og.Model(folder)
    tokenizer = og.Tokenizer(model)
    rows = [tokenizer.encode(prompt).tolist() for prompt in prompts]
    batch = tokenizer.encode_batch(prompts) if len(prompts) > 1 else rows[0]
    width = max(map(len, rows))
    params = og.GeneratorParams(model)
    params.set_search_options(
        max_length=width + int(count), batch_size=len(prompts), do_sample=False
    )
    generator = og.Generator(model, params)
    generator.append_tokens(batch)
    while not generator.is_done():
        generator.generate_next_token()
    sequences = [generator.get_sequence(row)[width:].tolist() for row in range(len(prompts))]
    print(json.dumps({"ids": rows, "tokens": sequences}))


if __name__ == "__main__":
    main()
