"""Structured outputs with the openai package: an answer that is a pydantic model."""

import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Review(BaseModel):
    """A judgment of a film."""

    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3, 4, 5]


completion = OpenAI().chat.completions.parse(
    model=sys.argv[1],
    messages=[{"role": "user", "content": "Judge this film: 'I laughed all the way.'"}],
    response_format=Review,
    max_tokens=256,
)
print("review:", completion.choices[0].message.parsed)
