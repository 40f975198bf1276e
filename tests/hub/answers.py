"""What the Hugging Face Hub answers to each request, as its client library 2.4 expects it."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlencode

from tests.hub.repository import Json, Repository, entry, etag, is_lfs, sibling, tree

TOKEN = "hf_localtoken"
USER = "me"
"""Owner of the token: reads private repositories, and writes to those named `me/...`."""

RESTRICTED = "Access to this model is restricted."


class State(Protocol):
    """What a server keeps."""

    repositories: dict[str, Repository]
    objects: dict[str, bytes]
    page_size: int

    @property
    def url(self) -> str: ...

    @property
    def cdn(self) -> str: ...


@dataclass
class Request:
    """A request, and what became of it.

    Attributes:
        path: quoted, without the query.
        headers: by name in lower case.
        port: of the client, which tells connections apart.
        status: answered with.
        sent: bytes of contents sent.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    port: int
    status: int = 0
    sent: int = 0

    @property
    def line(self) -> str:
        return f"{self.method} {unquote(self.path)}"

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def token(self) -> str | None:
        found = self.headers.get("authorization")
        return None if found is None else found.removeprefix("Bearer ")

    @property
    def json(self) -> Json:
        return json.loads(self.body)

    def first(self, name: str, default: str = "") -> str:
        """The first value of a name in the query."""
        return self.query.get(name, [default])[0]

    def flag(self, name: str) -> bool:
        return self.first(name).lower() in ("1", "true")


@dataclass
class Reply:
    """A reply; `length` is announced instead of the body's."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


@dataclass
class RefusalError(Exception):
    """An error that the client is told of."""

    status: int
    code: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)

    def reply(self) -> Reply:
        headers = {"X-Error-Message": self.message, **self.headers}
        if self.code:
            headers["X-Error-Code"] = self.code
        return in_json({"error": self.message}, self.status, headers)


def in_json(data: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    headers = {"Content-Type": "application/json", **(headers or {})}
    return Reply(status, json.dumps(data).encode(), headers)


def known(request: Request) -> bool:
    """Whether the user sent the request, not a client without a token."""
    if request.token not in (None, TOKEN):
        raise RefusalError(401, "", "Invalid credentials in Authorization header")
    return request.token == TOKEN


def repository_of(hub: State, request: Request, found: Mapping[str, str]) -> Repository:
    repository = hub.repositories.get(found["repo"])
    user = known(request)
    if repository is None or (repository.private and not user):
        status, message = (
            (404, "Repository not found") if user else (401, "Invalid username or password.")
        )
        raise RefusalError(status, "RepoNotFound", message)
    return repository


def commit_of(repository: Repository, found: Mapping[str, str | None]) -> str:
    revision = unquote(found.get("revision") or "main")
    sha = repository.resolve(revision)
    if sha is None:
        raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return sha


def writable(hub: State, request: Request, name: str) -> None:
    if not known(request):
        raise RefusalError(401, "", "Invalid username or password.")
    if not name.startswith(f"{USER}/"):
        raise RefusalError(403, "", f"You don't have the rights to write to {name}")


def described(name: str, repository: Repository, sha: str, blobs: bool = False) -> dict[str, Json]:
    return {
        "id": name,
        "modelId": name,
        "author": name.split("/")[0],
        "sha": sha,
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "createdAt": "2026-01-01T00:00:00.000Z",
        "lastModified": "2026-01-01T00:00:00.000Z",
        "siblings": [sibling(*file, blobs) for file in repository.commits[sha].items()],
        **repository.card,
    }


def whoami(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    if not known(request):
        raise RefusalError(401, "", "Invalid username or password.")
    access = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
    return in_json({"type": "user", "name": USER, "orgs": [], "auth": access})


def search(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    user = known(request)
    words = request.first("search").lower().split()
    models = []
    for name, repository in hub.repositories.items():
        model = described(name, repository, commit_of(repository, {}))
        if (
            (user or not repository.private)
            and all(word in name.lower() for word in words)
            and request.first("author", model["author"]) == model["author"]
            and set(request.query.get("filter", [])) <= set(model["tags"])
        ):
            models.append(model)
    models.sort(key=lambda model: -model["downloads"])
    return page(hub, request, models[: int(request.first("limit", "1000"))])


def page(hub: State, request: Request, items: list[Json]) -> Reply:
    """One page of a list, with a link to the next."""
    start = int(request.first("cursor", "0"))
    end = start + hub.page_size
    headers = {}
    if end < len(items):
        query = urlencode({**request.query, "cursor": [end]}, doseq=True)
        headers["Link"] = f'<{hub.url}{request.path}?{query}>; rel="next"'
    return in_json(items[start:end], headers=headers)


def info(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    sha = commit_of(repository, found)
    return in_json(described(found["repo"], repository, sha, request.flag("blobs")))


def list_tree(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    sha = commit_of(repository, found)
    folder = unquote(found["folder"] or "")
    entries = tree(repository.commits[sha], folder, request.flag("recursive"))
    if folder and not entries:
        raise RefusalError(404, "EntryNotFound", f"{folder} does not exist on {found['revision']}")
    return page(hub, request, entries)


def paths_info(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    files = repository.commits[commit_of(repository, found)]
    paths = parse_qs(request.body.decode())["paths"]
    return in_json([entry(path, files[path]) for path in paths if path in files])


def list_refs(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    refs = repository_of(hub, request, found).refs
    starts = {"branches": "refs/heads/", "tags": "refs/tags/", "pullRequests": "refs/pr/"}
    kinds = {
        kind: [
            {"name": ref.removeprefix(start), "ref": ref, "targetCommit": sha}
            for ref, sha in refs.items()
            if ref.startswith(start)
        ]
        for kind, start in starts.items()
    }
    return in_json({**kinds, "converts": []})


def resolve(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    if repository.gated and not (known(request) and repository.granted):
        raise RefusalError(403 if known(request) else 401, "GatedRepo", RESTRICTED)
    sha = commit_of(repository, found)
    path = unquote(found["file"])
    headers = {"X-Repo-Commit": sha}
    if path not in repository.commits[sha]:
        raise RefusalError(404, "EntryNotFound", "Entry not found", headers)
    data = repository.commits[sha][path]
    tag = f'"{etag(entry(path, data))}"'
    if not is_lfs(path, len(data)):
        return contents(request, data, repository.served.get(path, data), tag, headers)
    location = f"{hub.cdn}/cdn/{found['repo']}/{sha}/{quote(path)}"
    headers |= {"X-Linked-Etag": tag, "X-Linked-Size": str(len(data)), "Location": location}
    return Reply(302, b"Found. Redirecting", headers)


def blob(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    if request.token is not None:
        raise RefusalError(400, "", "Only one auth mechanism allowed")
    repository = hub.repositories[found["repo"]]
    path = unquote(found["file"])
    data = repository.commits[found["revision"]][path]
    tag = f'"{etag(entry(path, data))}"'
    return contents(request, data, repository.served.get(path, data), tag, {})


def contents(
    request: Request, data: bytes, served: bytes, tag: str, headers: Mapping[str, str]
) -> Reply:
    """A file, or its part that a range asks for. HEAD announces `data`, GET sends `served`."""
    headers = {"ETag": tag, "Accept-Ranges": "bytes", **headers}
    if request.method == "HEAD":
        return Reply(200, b"", headers, len(data))
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.range or "")
    if match is None:
        return Reply(200, served, headers)
    size = len(served)
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        raise RefusalError(416, "", "Range not satisfiable", {"Content-Range": f"bytes */{size}"})
    part = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Reply(206, served[start:end], {**headers, **part})


def create(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    wanted = request.json
    name = f"{wanted.get('organization') or USER}/{wanted['name']}"
    writable(hub, request, name)
    answer = {"url": f"{hub.url}/{name}", "name": name}
    if name in hub.repositories:
        return in_json({"error": "You already created this model repo", **answer}, 409)
    private = wanted.get("visibility") == "private"
    hub.repositories[name] = Repository({".gitattributes": b"*.onnx filter=lfs\n"}, private)
    return in_json(answer)


def validate_yaml(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    return in_json({"errors": [], "warnings": []})


def create_branch(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    writable(hub, request, found["repo"])
    ref = f"refs/heads/{unquote(found['name'])}"
    if ref in repository.refs:
        raise RefusalError(409, "", f"Reference already exists: {ref}")
    repository.refs[ref] = commit_of(repository, {"revision": request.json.get("startingPoint")})
    return in_json({})


def preupload(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    writable(hub, request, found["repo"])
    files = repository.commits[commit_of(repository, found)]
    modes = []
    for file in request.json["files"]:
        path = file["path"]
        mode = "lfs" if is_lfs(path, file["size"]) else "regular"
        modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False})
        if path in files:
            modes[-1]["oid"] = etag(entry(path, files[path]))
    return in_json({"files": modes})


def batch(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository_of(hub, request, found)
    writable(hub, request, found["repo"])
    objects = request.json["objects"]
    for wanted in objects:
        if wanted["oid"] not in hub.objects:
            wanted["actions"] = {"upload": {"href": f"{hub.cdn}/lfs/{wanted['oid']}"}}
    return in_json({"transfer": "basic", "objects": objects})


def upload(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    if hashlib.sha256(request.body).hexdigest() != found["oid"]:
        raise RefusalError(400, "", "The contents do not have this SHA-256")
    hub.objects[found["oid"]] = request.body
    return Reply()


def commit(hub: State, request: Request, found: Mapping[str, str]) -> Reply:
    repository = repository_of(hub, request, found)
    writable(hub, request, found["repo"])
    parent = commit_of(repository, found)
    changes: dict[str, bytes | None] = {}
    for line in request.body.splitlines():
        operation = json.loads(line)
        value = operation["value"]
        if operation["key"] == "header" and value.get("parentCommit", parent) != parent:
            raise RefusalError(
                412, "", "A commit has happened since. Please refresh and try again."
            )
        if operation["key"] == "file":
            changes[value["path"]] = base64.b64decode(value["content"])
        if operation["key"] == "lfsFile":
            changes[value["path"]] = hub.objects[value["oid"]]
        if operation["key"] == "deletedFile":
            changes[value["path"]] = None
        if operation["key"] == "deletedFolder":
            folder = value["path"].rstrip("/") + "/"
            changes |= {p: None for p in repository.commits[parent] if p.startswith(folder)}
    revision = unquote(found["revision"])
    ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
    answer = {}
    if request.flag("create_pr"):
        number = 1 + sum(name.startswith("refs/pr/") for name in repository.refs)
        ref = f"refs/pr/{number}"
        answer["pullRequestUrl"] = f"{hub.url}/{found['repo']}/discussions/{number}"
    sha = repository.commit(changes, ref, parent)
    answer |= {"commitOid": sha, "commitUrl": f"{hub.url}/{found['repo']}/commit/{sha}"}
    return in_json({"success": True, **answer})


REPO = "(?P<repo>[^/]+(?:/[^/]+)??)"
REVISION = "(?P<revision>[^/]+)"
API = f"/api/models/{REPO}"

ROUTES: dict[str, Callable[[State, Request, Mapping[str, str]], Reply]] = {
    "GET /api/whoami-v2": whoami,
    "GET /api/models": search,
    f"GET {API}/refs": list_refs,
    f"GET {API}/tree/{REVISION}(?:/(?P<folder>.+))?": list_tree,
    f"GET {API}(?:/revision/{REVISION})?": info,
    f"POST {API}/paths-info/{REVISION}": paths_info,
    f"POST {API}/preupload/{REVISION}": preupload,
    f"POST {API}/commit/{REVISION}": commit,
    f"POST {API}/branch/(?P<name>[^/]+)": create_branch,
    "POST /api/repos/create": create,
    "POST /api/validate-yaml": validate_yaml,
    rf"POST /{REPO}\.git/info/lfs/objects/batch": batch,
    "PUT /lfs/(?P<oid>[0-9a-f]{64})": upload,
    f"(?:GET|HEAD) /cdn/{REPO}/(?P<revision>[0-9a-f]{{40}})/(?P<file>.+)": blob,
    f"(?:GET|HEAD) /{REPO}/resolve/{REVISION}/(?P<file>.+)": resolve,
}


def answer(hub: State, request: Request) -> Reply:
    """The reply to a request.

    Raises:
        RefusalError: what was asked for does not exist or is not allowed.
    """
    for pattern, function in ROUTES.items():
        if found := re.fullmatch(pattern, f"{request.method} {request.path}"):
            return function(hub, request, found.groupdict())
    raise RefusalError(404, "", f"This server does not know {request.method} {request.path}")
