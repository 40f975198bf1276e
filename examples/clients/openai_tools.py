"""Call a tool with the openai package: streamed, forced, and answered."""

import json
import sys

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
CHOICE = {"type": "function", "function": {"name": "get_weather"}}


def get_weather(city: str) -> str:
    """The tool."""
    return json.dumps({"city": city, "degrees": 21})


model = sys.argv[1]
client = OpenAI()
messages = [{"role": "user", "content": "How warm is it in Paris?"}]

with client.chat.completions.stream(
    model=model, messages=messages, tools=TOOLS, tool_choice=CHOICE, max_tokens=256
) as stream:
    for event in stream:
        if event.type == "tool_calls.function.arguments.delta":
            print("arguments:", event.arguments_delta)
    message = stream.get_final_completion().choices[0].message

messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    print("call:", call.function.name, arguments)
    content = get_weather(**arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=32)
print("answer:", answer.choices[0].message.content)
