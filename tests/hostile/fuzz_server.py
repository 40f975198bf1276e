"""Sends random requests to a server, which must answer each one, and grow no more than a little.

    python -m tests.hostile.fuzz_server --seed 7 --count 50000
    python -m tests.hostile.fuzz_server --only request/7/123

Requests follow the schemas of /openapi.json, with mutations, and some are no HTTP at all. Then as
many clients as a fifth of the requests leave at random moments. A status of 500 or more is a
finding, except 501, 503 and 504, which the server chooses; so are a hang, a slot that stays taken,
a changed answer to a fixed request, and growth of the server's memory.
"""

import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import command
from tests.hostile.server_bodies import Bodies
from tests.runtime import tiny_encoder
from tests.runtime.chat.tiny_chat import packed_chat_models
from tests.runtime.tiny_adapters import random_factors, write_adapter

from ortolan.runtime.bundle.text_source import TextSource

HANG_S = 30.0
"""A request that takes longer hangs."""

CLIENTS = 4
"""Requests at the same time."""

ROUND = 500
"""Requests between two checks of the server."""

BY_DESIGN = (501, 503, 504)
"""Statuses from 500 on that the server chooses."""

MOST_MB = {"request": 20, "disconnect": 10}
"""Growth of the server's memory that is not a finding, in MiB."""

TEMPLATE = (
    "{{ tools or '' }}{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<bos>a:{% endif %}"
    "{# <tool_call> </think> #}"
)
ENCODERS: dict[str, dict[str, Any]] = {
    "embedder": {"kind": "embedding"},
    "prompted": {
        "kind": "embedding",
        "source": TextSource(max_tokens=24, prompts={"query": "k ", "document": "l "}),
    },
    "pairs": {"kind": "scores", "labels": ("relevant",)},
}
OPTIONS = ("--port", "0", "--threads", "1", "--cache-mb", "2")
PROBE = {"model": "tiny", "prompt": "abc", "max_tokens": 12, "temperature": 1, "seed": 3}


class WrongError(Exception):
    """The server did not do what it must."""


class Server:
    """A running `ortolan serve`.

    Attributes:
        port: it listens on.
        bodies: of its endpoints.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process = process
        self.port = port
        self.bodies = Bodies(json.loads(self.get("/openapi.json")))
        self._expected = self._probe()

    def get(self, path: str) -> bytes:
        """The body of a GET."""
        return self.ask(http_get(path))[1]

    def ask(self, data: bytes, *, is_all: bool = False) -> tuple[int, bytes]:
        """Send bytes; return the status, 0 if there is none, and the body.

        Args:
            data: a request.
            is_all: tell the server that no more bytes come.
        """
        with self.connected() as connection:
            connection.sendall(data)
            if is_all:
                connection.shutdown(socket.SHUT_WR)
            return answer_of(connection)

    def connected(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)

    def megabytes(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def check(self) -> None:
        """Raise WrongError unless the server is idle and gives its first answer."""
        until = time.monotonic() + HANG_S
        while (load := self._load()) and time.monotonic() < until:
            time.sleep(0.01)
        if load:
            raise WrongError(f"{load} requests stay in the server")
        answer = self._probe()
        if answer != self._expected:
            raise WrongError(f"expected {self._expected!r}, got {answer!r}")

    def _load(self) -> float:
        text = self.get("/metrics").decode()
        pattern = r'ortolan_requests_(?:running|waiting){model="[^"]*"} (\S+)'
        return sum(float(count) for count in re.findall(pattern, text))

    def _probe(self) -> str:
        status, body = self.ask(http_post("/v1/completions", json.dumps(PROBE).encode()))
        if status != 200:
            raise WrongError(f"the fixed request got {status}: {body[:300]!r}")
        text: str = json.loads(body)["choices"][0]["text"]
        return text


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """Read a response; its status is 0 if the server closes the connection without one."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionError):
        return 0, b""


def http_get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def http_post(path: str, body: bytes, headers: str = "Content-Type: application/json") -> bytes:
    """The bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def send(server: Server, name: str) -> str:
    """Send one random request; return the class of the answer.

    Raises:
        WrongError: the answer is wrong.
        TimeoutError: there is none.
    """
    random = Random(name)
    path = server.bodies.path(random)
    body = server.bodies.body(path, random)
    data = http_post(path, body)
    if random.random() < 0.05:
        path = random.choice(server.bodies.forms)
        form = "Content-Type: multipart/form-data; boundary=b"
        data = http_post(path, server.bodies.form(random), form)
    is_raw = random.random() < 0.05
    data = _raw(data, path, random) if is_raw else data
    status, answer = server.ask(data, is_all=is_raw)
    if status == 0:
        if is_raw:
            return "closed"
        raise WrongError("the server closed the connection without an answer")
    if status >= 500 and status not in BY_DESIGN:
        raise WrongError(f"{status}: {answer[:500]!r}")
    if status >= 400 and not is_raw and not json.loads(answer)["error"]["message"]:
        raise WrongError(f"{status} without a message")
    if b'"code":"bug"' in answer:
        raise WrongError(f"a bug within a stream: {answer[-500:]!r}")
    return f"{status // 100}xx"


def leave(server: Server, name: str) -> str:
    """Send a request and close the connection at a random moment."""
    random = Random(name)
    paths: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi."}]}),
    )
    path, prompt = random.choice(paths)
    body = {**prompt, "model": "tiny", "max_tokens": 100, "ignore_eos": True, "seed": 1}
    body |= {"stream": random.random() < 0.7, "n": random.choice([1, 1, 2])}
    data = http_post(path, json.dumps(body).encode())
    with server.connected() as connection:
        if random.random() < 0.5:  # close with a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        is_part = random.random() < 0.1
        connection.sendall(data[: random.randrange(len(data))] if is_part else data)
        if is_part or not body["stream"] or random.random() < 0.5:
            time.sleep(random.random() * 0.03)
        else:
            connection.recv(random.choice([1, 500, 5_000]))
    return "left"


ODD_PATHS = ("/%00", "/..%2f..%2fetc/passwd", "/v1/models/%ff", "//", "/v1/" + "x" * 9000)
METHODS = (b"GET", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"X" * 300)
MEDIA = ("text/plain", "", "application/json; charset=utf-16", "\x7f")
CHUNKS = (b"0\r\n\r\n", b"zz\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"ffffffffffff\r\n\r\n")


def _raw(data: bytes, path: str, random: Random) -> bytes:
    """Bytes that are almost HTTP."""
    at = random.randrange(len(data))
    chunked = http_post(path, b"", "Transfer-Encoding: chunked\r\nContent-Type: application/json")
    return random.choice(
        [
            data[:at] + random.randbytes(8) + data[at:] + b"\r\n\r\n",
            random.randbytes(200) + b"\r\n\r\n",
            http_post(path, b"{}", f"Content-Type: {random.choice(MEDIA)}"),
            chunked.replace(b"Content-Length: 0\r\n", b"") + random.choice(CHUNKS),
            data.replace(b"POST", random.choice(METHODS), 1),
            http_get(random.choice(ODD_PATHS)),
        ]
    )


def _bundles(folder: Path) -> dict[str, Path]:
    """A chat model with an adapter, and encoders, written if they do not exist."""
    place = folder / "served"
    paths = {"tiny": place / "fp32", **{name: place / name for name in ENCODERS}}
    if not place.exists():
        (model,) = packed_chat_models(place, ["fp32"], TEMPLATE).values()
        paths["tiny"] = model.bundle.path
        write_adapter(place / "adapter", model.bundle, random_factors(model.bundle))
        for name, options in ENCODERS.items():
            tiny_encoder.write_bundle(place / name, **options)
    return paths


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Serve tiny random models in a process of its own."""
    models = [f"{name}={path}" for name, path in _bundles(folder).items()]
    adapter = f"adapter={folder / 'served' / 'adapter'}"
    with subprocess.Popen(
        [sys.executable, "-m", "ortolan", "serve", *models, *OPTIONS, "--adapter", adapter],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{command.ROOT / 'src'}"},
    ) as process:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            if found := re.search(rb"listening on http://\S+?:(\d+)", line):
                break
        try:
            assert found is not None, "the server did not start"
            drain = ThreadPoolExecutor(1)
            drain.submit(lambda: [None for _ in process.stderr or ()])
            yield Server(process, int(found[1]))
        finally:
            process.terminate()
            process.wait(60)


def fuzz(server: Server, kind: str, names: list[str], findings: list[dict[str, Any]]) -> None:
    """Send requests by name, check the server in between, print a line, and add the findings."""
    act = {"request": send, "disconnect": leave}[kind]
    counts: Counter[str] = Counter()
    started, first_mb = time.monotonic(), 0.0

    def outcome(name: str) -> str:
        try:
            return act(server, name)
        except (WrongError, TimeoutError, ConnectionError) as error:
            command.add_finding(findings, name=name, kind=type(error).__name__, message=f"{error}")
            return "wrong"

    with ThreadPoolExecutor(CLIENTS) as pool:
        for at in range(0, len(names), ROUND):
            counts.update(pool.map(outcome, names[at : at + ROUND]))
            server.check()
            if at <= len(names) // 5:  # until then, the memory of the first requests of each kind
                first_mb = server.megabytes()
    growth = server.megabytes() - first_mb
    seconds = time.monotonic() - started
    print(
        f"{kind}: {dict(counts)}, {seconds:.0f} s, {growth:+.1f} MiB of {first_mb:.0f}", flush=True
    )
    if growth > MOST_MB[kind]:
        command.add_finding(findings, name=kind, kind="memory", message=f"{growth:.1f} MiB")


def main() -> int:
    parser = command.parser(__doc__, count=50_000)
    parser.add_argument("--only", help="name of one request")
    options = parser.parse_args()
    findings: list[dict[str, Any]] = []
    with served(options.bundles) as server:
        if options.only:
            fuzz(server, options.only.partition("/")[0], [options.only], findings)
        else:
            seed = command.pick_seed(options.seed)
            for kind, count in (("request", options.count), ("disconnect", options.count // 5)):
                fuzz(server, kind, [f"{kind}/{seed}/{n}" for n in range(count)], findings)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
