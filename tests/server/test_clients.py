"""Clients from PyPI run unchanged: the programs in examples/clients against a live server.

Installs the clients in environments of their own, so it needs a package index or its cache.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.runtime import tiny_encoder
from tests.runtime.chat.tiny_chat import chat_model
from tests.server.live import LiveServer, live_server

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.server import Settings

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"

TEMPLATE = (
    "{{ tools or '' }}{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<bos>a:{% endif %}"
)
ENDS = (96, *(ord(letter) - 32 for letter in "~@&%"))
"""Ids that end an answer. A random model seldom writes <eos>, but often these characters."""

PROGRAMS = {
    "openai_chat": ["answer: ", "logprob=", "tokens: "],
    "openai_tools": ["call: get_weather {'city': ", "answer: "],
    "openai_structured": ["review: verdict=", "stars="],
    "openai_responses": ["call: get_weather {'city': ", "tokens: ", "answer: "],
    "openai_async": ["answers: 20"],
    "openai_embeddings": ["similarity to 'k l': ", "tokens: "],
    "openai_agents_tools": ["tool: ", "answer: "],
    "pydantic_ai_tools": ["weather: city=", "is_warm=", "streamed: "],
    "langchain_chat": ["answer: ", "streamed: ", "call: Weather {", "structured: city="],
    "instructor_model": ["person: name=", "is_author="],
}
"""Programs, and what they print."""


@cache
def installed(requirements: str, folder: Path) -> Path:
    """Install packages in a new environment; return the folder of its programs."""
    home = folder / requirements
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    # The programs import a small part of what is installed.
    options = ["--quiet", "--no-compile", "-r", str(CLIENTS / requirements)]
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    subprocess.run([*pip, "install", *options], check=True)
    return home / "bin"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("served")
    embedder = tiny_encoder.write_bundle(folder / "embedder", kind="embedding")
    model = chat_model(
        folder / "chat",
        {"chat_template.jinja": TEMPLATE.encode()},
        tokens=Tokens(eos=ENDS),
        context_length=4096,
    )
    settings = Settings(
        bundles={"tiny": model.bundle.path, "embedder": embedder.path},
        keys=frozenset({"sk-test"}),
        load={"threads": 1},
        serve={"slots": 2, "queue": 2},
    )
    with live_server(settings) as running:
        yield running


def run(server: LiveServer, *command: str | Path, **variables: str) -> str:
    """Run a client as a user would; return what it prints."""
    done = subprocess.run(
        [*map(str, command)],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": "sk-test",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_runs_unchanged(program: str, server: LiveServer, environments: Path) -> None:
    own = program.startswith("instructor")
    requirements = "requirements-instructor.txt" if own else "requirements.txt"
    python = installed(requirements, environments) / "python"
    model = "embedder" if program == "openai_embeddings" else "tiny"
    output = run(server, python, CLIENTS / f"{program}.py", model)
    for text in PROGRAMS[program]:
        assert text in output
    (stats,) = (m.service.stats() for m in server.models.loaded if m.name == model)
    assert stats.running == stats.waiting == 0
    if program == "openai_async":
        assert stats.refused["queue-full"] > 0  # so the client has retried


def test_llm_runs_with_a_file_of_models(
    server: LiveServer, environments: Path, tmp_path: Path
) -> None:
    name = "extra-openai-models.yaml"
    models = (CLIENTS / "llm" / name).read_text()
    (tmp_path / name).write_text(models.replace("http://127.0.0.1:8080", server.url))
    program = installed("requirements.txt", environments) / "llm"
    arguments = ["-m", "ortolan", "--key", "sk-test", "Name a color.", "-o", "max_tokens", "32"]
    for more in ([], ["--no-stream"], ["--schema", "is_warm bool"]):
        assert run(server, program, *arguments, *more, LLM_USER_PATH=str(tmp_path)).strip()
