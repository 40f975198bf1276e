"""An agent of pydantic-ai whose answer is a pydantic model."""

import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Paris", "Rome"]
    is_warm: bool


agent = Agent(
    OpenAIChatModel(sys.argv[1]),
    output_type=Weather,
    instructions="Be brief.",
    model_settings={"max_tokens": 256},
)
print("weather:", agent.run_sync("Is it warm in Paris?").output)

writer = Agent(OpenAIChatModel(sys.argv[1]), model_settings={"max_tokens": 32})
with writer.run_stream_sync("Name a color.") as stream:
    print("streamed:", "".join(stream.stream_text(delta=True)))
