"""Embeddings with the openai package, of a bundle that is an encoder."""

import sys

from openai import OpenAI

texts = ["a b c", "a b d", "k l"]
response = OpenAI().embeddings.create(model=sys.argv[1], input=texts)
first, *others = (item.embedding for item in response.data)
for text, other in zip(texts[1:], others, strict=True):
    print(f"similarity to {text!r}:", sum(a * b for a, b in zip(first, other, strict=True)))
print("tokens:", response.usage.prompt_tokens)
