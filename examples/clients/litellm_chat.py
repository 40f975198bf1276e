"""LiteLLM: an answer, a stream, and a tool call whose messages go back to the model."""

import sys
from typing import Any

import litellm

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


def ask(messages: list[Any], **options: Any) -> Any:
    """Send messages."""
    return litellm.completion(
        model=f"openai/{sys.argv[1]}", messages=messages, max_tokens=128, **options
    )


messages: list[Any] = [{"role": "user", "content": "Is it warm in Paris?"}]
print("answer:", ask(messages).choices[0].message.content)
parts = [chunk.choices[0].delta.content or "" for chunk in ask(messages, stream=True)]
print("streamed:", "".join(parts))

message = ask(messages, tools=[WEATHER], tool_choice="required", seed=-1).choices[0].message
messages.append(message)  # as the client has it, with fields of its own
for call in message.tool_calls:
    print("call:", call.function.name, call.function.arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
print("then:", ask(messages, tools=[WEATHER]).choices[0].message.content)
