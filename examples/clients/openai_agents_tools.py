"""An agent of the openai-agents package that calls a function."""

import sys
from typing import Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # traces would go to OpenAI


@function_tool
def get_weather(city: Literal["Oslo", "Paris", "Rome"]) -> str:
    """The weather of a city."""
    print("tool:", city)
    return f"21 degrees in {city}"


agent = Agent(
    name="Assistant",
    instructions="Be brief.",
    model=sys.argv[1],
    tools=[get_weather],
    model_settings=ModelSettings(tool_choice="get_weather", max_tokens=256),
)
result = Runner.run_sync(agent, "How warm is it in Paris?")
print("answer:", result.final_output)
