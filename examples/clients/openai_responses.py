"""The responses interface with the openai package: text, a stream, and a function."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}

model = sys.argv[1]
client = OpenAI()

response = client.responses.create(
    model=model, instructions="Be brief.", input="Name a color.", max_output_tokens=32
)
print("answer:", response.output_text)

with client.responses.stream(model=model, input="Name a color.", max_output_tokens=32) as stream:
    print("streamed: ", end="")
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print("\ntokens:", stream.get_final_response().usage.output_tokens)

question = [{"role": "user", "content": "How warm is it in Paris?"}]
choice = {"type": "function", "name": "get_weather"}
response = client.responses.create(
    model=model, input=question, tools=[TOOL], tool_choice=choice, max_output_tokens=256
)
for item in response.output:
    if item.type == "function_call":
        print("call:", item.name, json.loads(item.arguments))
        result = {"type": "function_call_output", "call_id": item.call_id, "output": "21"}
        question += [item, result]
response = client.responses.create(model=model, input=question, tools=[TOOL], max_output_tokens=32)
print("answer:", response.output_text)
