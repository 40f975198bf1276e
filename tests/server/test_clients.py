"""Clients from PyPI and npm run unchanged: the programs in examples/clients against a live server.

Installs the clients in environments of their own, so it needs the registries or their caches.
"""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from tests.hosts.node_package import installed_package
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
    "litellm_chat": ["answer: ", "streamed: ", "call: get_weather {", "then: "],
    "cohere_rerank": ["document: 'k l', score=1.000"],
}
"""Programs, and what they print."""

OTHERS = {
    "litellm_chat": "requirements-litellm.txt",
    "cohere_rerank": "requirements-litellm.txt",
    "lm_eval": "requirements-lm-eval.txt",
}
"""Requirements of programs that need other versions."""

ENCODES = ("openai_embeddings", "cohere_rerank")
"""Programs that need an encoder."""

PAGE_ORIGIN = "http://127.0.0.1:8099"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Start to install all clients, and return a function that waits for those of a program.

    It returns the folder of the installed programs.
    """
    started: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}
    for requirements in ("requirements.txt", *OTHERS.values()):
        if requirements not in started:
            home = tmp_path_factory.mktemp("clients")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
            # The files name every package, and the programs import a small part of them.
            options = ["--quiet", "--no-deps", "--no-compile", "-r", str(CLIENTS / requirements)]
            started[requirements] = home, subprocess.Popen([*pip, *options])

    def installed(program: str) -> Path:
        home, install = started[OTHERS.get(program, "requirements.txt")]
        assert install.wait(600) == 0
        return home / "bin"

    yield installed
    for _, install in started.values():
        install.kill()
        install.wait()


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
        origins=(PAGE_ORIGIN,),
        load={"threads": 1},
        serve={"slots": 2, "queue": 2},
    )
    with live_server(settings) as running:
        yield running


def run(
    server: LiveServer, *command: str | Path, folder: Path | None = None, **variables: str
) -> str:
    """Run a client as a user would; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test"}
    done = subprocess.run(
        [*map(str, command)],
        env=environment | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_runs_unchanged(
    program: str, server: LiveServer, programs: Callable[[str], Path]
) -> None:
    model = "embedder" if program in ENCODES else "tiny"
    output = run(server, programs(program) / "python", CLIENTS / f"{program}.py", model)
    for text in PROGRAMS[program]:
        assert text in output
    (stats,) = (m.service.stats() for m in server.models.loaded if m.name == model)
    assert stats.running == stats.waiting == 0
    if program == "openai_async":
        assert stats.refused["queue-full"] > 0  # so the client has retried


def test_llm_runs_with_a_file_of_models(
    server: LiveServer, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    name = "extra-openai-models.yaml"
    models = (CLIENTS / "llm" / name).read_text()
    (tmp_path / name).write_text(models.replace("http://127.0.0.1:8080", server.url))
    program = programs("llm") / "llm"
    arguments = ["-m", "ortolan", "--key", "sk-test", "Name a color.", "-o", "max_tokens", "32"]
    for more in (["--no-stream"], ["--schema", "is_warm bool"]):
        assert run(server, program, *arguments, *more, LLM_USER_PATH=str(tmp_path)).strip()


@pytest.fixture(scope="module")
def node_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs for Node and browsers, and what they need."""
    if shutil.which("npm") is None:
        pytest.skip("no Node. Install node 20 or newer, with npm")
    folder = tmp_path_factory.mktemp("node") / "clients"
    shutil.copytree(CLIENTS, folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    return folder


def test_the_ai_sdk_runs_unchanged(server: LiveServer, node_clients: Path) -> None:
    output = run(server, "node", node_clients / "ai_sdk_tools.mjs", "tiny")
    for text in ("answer: ", "streamed: ", 'object: {"city":"', "tools: sunny in ", "ids: true"):
        assert text in output


@contextmanager
def served_files(folder: Path) -> Iterator[str]:
    """Serve a folder as another origin; yields it."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    address = PAGE_ORIGIN.removeprefix("http://").split(":")
    with http.server.ThreadingHTTPServer((address[0], int(address[1])), handler) as files:
        thread = threading.Thread(target=files.serve_forever)
        thread.start()
        try:
            yield PAGE_ORIGIN
        finally:
            files.shutdown()
            thread.join()


def test_a_page_of_another_origin_uses_openais_client(
    server: LiveServer, node_clients: Path
) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium. Run `make software-gpu`, which installs Debian's")
    query = {"server": f"{server.url}/v1", "key": "sk-test", "model": "tiny"}
    driver = Path(__file__).parent / "open_page.mjs"
    with served_files(node_clients) as origin:
        done = subprocess.run(
            ["node", driver, chromium, f"{origin}/openai_page.html?{urlencode(query)}"],
            cwd=installed_package(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "error" not in done.stdout, done.stdout + done.stderr
    for text in ("answer: ", "streamed: ", "response: ", "input: Name a city.", "models: tiny,"):
        assert text in done.stdout


def test_lm_eval_measures_the_likelihoods_of_the_model(
    server: LiveServer, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    model = next(served.model for served in server.models.loaded if served.name == "tiny")
    shutil.copytree(CLIENTS / "lm_eval", tmp_path / "tasks")
    settings = Settings(bundles={"tiny": model.bundle.path}, load={"threads": 1})
    with live_server(settings) as alone:  # lm-eval asks for the tokenizer of the only model
        given = f"model=tiny,tokenizer_backend=remote,base_url={alone.url}/v1/completions"
        command: list[str | Path] = [programs("lm_eval") / "lm_eval"]
        command += ["--model", "local-completions"]
        command += ["--log_samples", "--include_path", ".", "--model_args", given]
        command += ["--tasks", "likelihood,continued", "--output_path", tmp_path / "out"]
        run(alone, *command, folder=tmp_path / "tasks")
    samples = {
        kind: [
            json.loads(line)
            for path in (tmp_path / "out").rglob(f"samples_{kind}_*.jsonl")
            for line in path.read_text().splitlines()
        ]
        for kind in ("likelihood", "continued")
    }
    assert [len(each) for each in samples.values()] == [4, 4]
    for sample in samples["likelihood"]:
        measured = float(sample["resps"][0][0][0])
        assert measured == pytest.approx(likelihood(model, sample["doc"]), abs=1e-4)
    for sample in samples["continued"]:
        text = model.generate(sample["doc"]["text"], max_new_tokens=16, stop=["\n"]).text
        assert sample["resps"][0][0] == text


def likelihood(model: Any, document: dict[str, str]) -> float:
    """The log-likelihood of a target after its text, from logits."""
    text = document["text"].rstrip()  # lm-eval moves trailing spaces to the target
    whole = model.tokenizer.encode(document["text"] + document["target"])
    start = len(model.tokenizer.encode(text))
    logits_LV = np.asarray(model.logits(whole), np.float64)
    logits_LV -= logits_LV.max(axis=-1, keepdims=True)
    logprobs_LV = logits_LV - np.log(np.exp(logits_LV).sum(axis=-1, keepdims=True))
    return float(sum(logprobs_LV[at - 1, whole[at]] for at in range(start, len(whole))))
