"""Chat with the openai package: an answer, and one that is streamed."""

import sys

from openai import OpenAI

model = sys.argv[1]
client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY

completion = client.chat.completions.create(
    model=model,
    messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a color."},
    ],
    max_tokens=32,
    seed=1,
    logprobs=True,
    top_logprobs=2,
)
print("answer:", completion.choices[0].message.content)
print("first token:", completion.choices[0].logprobs.content[0].top_logprobs)

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name a color."}],
    max_tokens=32,
    stream=True,
    stream_options={"include_usage": True},
)
print("streamed: ", end="")
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print("\ntokens:", chunk.usage.completion_tokens)
