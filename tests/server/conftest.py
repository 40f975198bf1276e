"""One live server with two tiny bundles, a chat model among them."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.runtime.chat.tiny_chat import packed_chat_models
from tests.server.live import LiveServer, live_server

from ortolan.runtime import Decoder
from ortolan.server import Settings

TEMPLATE = (
    "{{ tools or '' }}{% for m in messages %}<bos>{{ m.role[0] }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or () %}\n<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<bos>a:{% endif %}"
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return packed_chat_models(tmp_path_factory.mktemp("served"), ("fp32", "int4"), TEMPLATE)


@pytest.fixture(scope="session")
def bundles(models: dict[str, Decoder]) -> dict[str, Path]:
    return {name: model.bundle.path for name, model in models.items()}


@pytest.fixture(scope="module")  # its threads must not outlive the module
def server(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    settings = Settings(bundles=bundles, load={"threads": 1}, serve={"slots": 4, "queue": 8})
    with live_server(settings) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client
