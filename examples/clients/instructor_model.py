"""A pydantic model from a text, with instructor."""

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person of a text."""

    name: Literal["Ada", "Alan", "Grace"]
    is_author: bool


client = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
person = client.create(
    model=sys.argv[1],
    response_model=Person,
    messages=[{"role": "user", "content": "Ada wrote the first program."}],
    max_tokens=256,
)
print("person:", person)
