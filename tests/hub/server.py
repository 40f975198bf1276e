"""A local server of the Hugging Face Hub's API, with LFS files at another origin (localhost)."""

import json
import runpy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from huggingface_hub import constants, file_download, hf_api
from huggingface_hub.utils import _http

TOKEN = "hf_localtoken"  # reads private repositories, and writes to those named `me/...`
LFS = (".bin", ".data", ".gguf", ".onnx", ".safetensors")


class Repository:
    """Commits by ref, such as `refs/heads/main`; files of each commit, and those sent instead."""

    def __init__(self, files: Mapping[str, bytes], private: bool = False, gated: bool = False):
        self.private, self.gated, self.refs = private, gated, dict[str, str]()
        self.commits, self.served = dict[str, dict[str, bytes]](), dict[str, bytes]()
        self.commit(files)

    def commit(self, changes: Mapping[str, bytes | None], ref: str = "refs/heads/main") -> str:
        """Add a commit to a ref, new or not. None deletes a file."""
        parent = self.refs.get(ref) or self.refs.get("refs/heads/main", "")
        files = {**self.commits.get(parent, {}), **changes}
        sha = self.refs[ref] = f"{len(self.commits):08x}" * 5
        self.commits[sha] = {path: data for path, data in files.items() if data is not None}
        return sha


class Request(BaseHTTPRequestHandler):
    server: "Hub"

    def do_GET(self) -> None:
        hub, path = self.server, urlsplit(self.path).path
        self.line, self.range = f"{self.command} {unquote(path)}", self.headers["Range"]
        self.token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self.sent, self.is_open = 0, self.token == TOKEN or path.startswith("/cdn/")
        hub.requests.append(self)
        try:
            if status := self.fault(hub.statuses):
                raise HTTPException(status, "")
            parts = path.removeprefix("/cdn").split("/")[1:]
            status, body, headers = self.answer(self.command, *map(unquote, parts))
        except HTTPException as error:
            status, code = error.args
            body, headers = {}, {"X-Error-Code": code, "Retry-After": hub.retry_after}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name, f"{value}")
        self.end_headers()
        data = b"" if self.command == "HEAD" else data[: self.fault(hub.cuts) if data else None]
        self.sent = len(data)
        with suppress(ConnectionError):  # clients may hang up
            self.wfile.write(data)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...

    def fault(self, faults: dict[str, list[int]]) -> int | None:
        queues = [queue for key, queue in faults.items() if queue and key in self.line]
        return queues[0].pop(0) if queues else None

    def find(self, repo: str, revision: str = "main") -> tuple[Repository, str]:
        repository = self.server.repositories.get(repo)
        if repository is None or (repository.private and not self.is_open):
            raise HTTPException(404 if self.is_open else 401, "RepoNotFound")
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        sha = next((sha for ref, sha in repository.refs.items() if ref in names), revision)
        if sha not in repository.commits:
            raise HTTPException(404, "RevisionNotFound")
        return repository, sha

    def answer(self, *parts: str) -> Any:
        hub, body = self.server, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        first, *rest = map(json.loads, body.splitlines() if self.command == "POST" else ["{}"])
        match parts:
            case "GET", "api", "models":
                query = parse_qsl(urlsplit(self.path).query)
                words = [word.lower() for key, word in query if key in ("search", "author")]
                names = [n for n in hub.repositories if all(word in n.lower() for word in words)]
                return 200, [{"id": n} for n in names if not hub.repositories[n].private], {}
            case "GET", "api", "models", org, name, *action:
                repository, sha = self.find(f"{org}/{name}", *action[1:])
                contents = repository.commits[sha]
                files = [dict[str, Any](type="file", path=p, rfilename=p) for p in contents]
                if "tree" in action or "blobs=" in self.path:
                    for file, data in zip(files, contents.values(), strict=True):
                        file |= {"size": len(data), "oid": sha256(data).hexdigest()}
                about = {"id": f"{org}/{name}", "sha": sha, "private": repository.private}
                return 200, files if "tree" in action else {**about, "siblings": files}, {}
            case _, org, name, "resolve", revision, *names:
                return self.file(*self.find(f"{org}/{name}", revision), "/".join(names))
            case "PUT", "lfs", oid:
                hub.objects[oid] = body
            case "POST", "api", "validate-yaml":
                pass
            case _ if not self.is_open or "me" not in (*parts, first.get("organization")):
                raise HTTPException(403 if self.is_open else 401, "")
            case "POST", "api", "repos", "create":
                repo, private = f"me/{first['name']}", first.get("visibility") == "private"
                status = 409 if repo in hub.repositories else 200
                hub.repositories.setdefault(repo, Repository({}, private))
                return status, {"url": f"{hub.url}/{repo}"}, {}
            case "POST", "api", "models", org, name, "branch", branch:
                repository, sha = self.find(f"{org}/{name}")
                repository.refs.setdefault(f"refs/heads/{branch}", sha)
            case ("POST", *_, "preupload", _) | ("POST", *_, "batch"):
                for file in first.get("files") or first["objects"]:
                    actions = {"upload": {"href": f"{hub.cdn}/lfs/{file.get('oid')}"}}
                    file |= {"uploadMode": "lfs", "shouldIgnore": False, "actions": actions}
            case "POST", "api", "models", org, name, "commit", branch:
                repository, sha = self.find(f"{org}/{name}", branch)
                changes = dict[str, bytes | None]()
                for value in (line["value"] for line in rest):
                    empty = b"" if "content" in value else None  # other files are in LFS
                    changes[value["path"]] = hub.objects.get(value.get("oid"), empty)
                oid = repository.commit(changes, f"refs/heads/{branch}")
                return 200, {"commitOid": oid, "commitUrl": f"{hub.url}/me/{name}/commit/"}, {}
            case _:
                raise HTTPException(404, "")
        return 200, first, {}

    def file(self, repository: Repository, sha: str, path: str) -> Any:
        if repository.gated:
            raise HTTPException(403 if self.is_open else 401, "GatedRepo")
        if path not in repository.commits[sha]:
            raise HTTPException(404, "EntryNotFound")
        data = repository.commits[sha][path]
        etag, size = f'"{sha256(data).hexdigest()}"', len(data)
        headers = {"X-Repo-Commit": sha, "ETag": etag, "X-Linked-Size": size}
        if path.endswith(LFS) and not self.path.startswith("/cdn/"):
            return 302, b"", {**headers, "Location": f"{self.server.cdn}/cdn{self.path}"}
        data = repository.served.get(path, data) if self.command == "GET" else data
        start = int((self.range or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return 206 if self.range else 200, data[start:], headers


class Hub(HTTPServer):
    """A server. Each of `statuses` and `cuts` is for one request with the key in its line."""

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.socket.listen(128)
        hosts = ("127.0.0.1", "localhost")
        self.url, self.cdn = (f"http://{host}:{self.server_port}" for host in hosts)
        self.repositories, self.requests = dict[str, Repository](), list[Request]()
        self.statuses, self.cuts = dict[str, list[int]](), dict[str, list[int]]()
        self.home, self.retry_after, self.objects = home, 0, dict[str, bytes]()
        self.sleeps = list[float]()
        self.sleep = self.sleeps.append  # a hub stands in for the library's `time`
        self.environment = {"HF_HOME": f"{home}", "HF_HUB_CACHE": f"{home}/hub", "HF_TOKEN": ""}
        self.environment |= {"HF_ENDPOINT": self.url, "NO_PROXY": "127.0.0.1,localhost"}
        self.environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}

    def seen(self, key: str = "") -> list[Request]:
        return [request for request in self.requests if key in request.line]

    def sent(self, key: str = "") -> int:
        return sum(request.sent for request in self.seen(key))


def point_library_at(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make huggingface_hub in this process use a server, and not wait before retries."""
    _http.close_session()  # the next one reads the variables of proxies again
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    for name, value in runpy.run_path(constants.__file__, None, constants.__name__).items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
    monkeypatch.setattr(_http, "time", hub)
    monkeypatch.setattr(file_download, "time", hub)
    warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)  # in uploads


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server without repositories that huggingface_hub uses, and an empty cache."""
    with Hub(tmp_path / "hf") as hub:
        Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        point_library_at(hub, monkeypatch)
        yield hub
        _http.close_session()
        hub.shutdown()
