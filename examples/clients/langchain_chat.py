"""LangChain: a chain, a stream, a bound tool and a structured answer."""

import sys
from typing import Literal

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Paris", "Rome"]
    is_warm: bool


model = ChatOpenAI(model=sys.argv[1], max_completion_tokens=256)
chain = (
    ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "Name {thing}.")]) | model
)
print("answer:", chain.invoke({"thing": "a color"}).content)
print("streamed:", "".join(chunk.content for chunk in chain.stream({"thing": "a city"})))

calls = model.bind_tools([Weather], tool_choice="Weather").invoke("Is it warm in Paris?").tool_calls
print("call:", calls[0]["name"], calls[0]["args"])
print("structured:", model.with_structured_output(Weather).invoke("Is it warm in Rome?"))
