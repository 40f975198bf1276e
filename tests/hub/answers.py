"""Replies of the Hugging Face Hub, as its client library 2.4 expects them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlencode

from tests.hub.messages import RefusalError, Reply, Request, in_json
from tests.hub.repository import Json, Repository, describe, etag, is_lfs, tree

if TYPE_CHECKING:
    from tests.hub.server import Hub

TOKEN = "hf_localtoken"
USER = "me"
"""Owner of the token: reads private repositories, and writes to those named `me/...`."""


@dataclass
class Call:
    """A request with the parts of its path, unquoted."""

    hub: Hub
    request: Request
    parts: dict[str, str]

    @property
    def user(self) -> bool:
        """Whether the request has the token."""
        if self.request.token not in (None, TOKEN):
            raise RefusalError(401, "", "Invalid credentials in Authorization header")
        return self.request.token == TOKEN

    @property
    def repository(self) -> Repository:
        repository = self.hub.repositories.get(self.parts["repo"])
        if repository is not None and (self.user or not repository.private):
            return repository
        if self.user:
            raise RefusalError(404, "RepoNotFound", "Repository not found")
        raise RefusalError(401, "RepoNotFound", "Invalid username or password.")

    @property
    def sha(self) -> str:
        revision = self.parts.get("revision", "main")
        sha = self.repository.resolve(revision)
        if sha is None:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    @property
    def files(self) -> dict[str, bytes]:
        return self.repository.commits[self.sha]

    def need_write(self, name: str) -> None:
        if not self.user:
            raise RefusalError(401, "", "Invalid username or password.")
        if not name.startswith(f"{USER}/"):
            raise RefusalError(403, "", f"You don't have the rights to write to {name}")


def search(call: Call) -> Reply:
    request = call.request
    words = request.first("search").lower().split()
    models = [
        model
        for name, repository in call.hub.repositories.items()
        if (call.user or not repository.private)
        and all(word in name.lower() for word in words)
        and (model := describe(name, repository, repository.refs["refs/heads/main"], False))
        and request.first("author", model["author"]) == model["author"]
        and set(request.query.get("filter", [])) <= set(model["tags"])
    ]
    models.sort(key=lambda model: -model["downloads"])
    return page(call, models[: int(request.first("limit", "1000"))])


def page(call: Call, items: list[Json]) -> Reply:
    """One page of a list, with a link to the next."""
    start = int(call.request.first("cursor", "0"))
    end = start + call.hub.page_size
    headers = {}
    if end < len(items):
        query = urlencode({**call.request.query, "cursor": [end]}, doseq=True)
        headers["Link"] = f'<{call.hub.url}{call.request.path}?{query}>; rel="next"'
    return in_json(items[start:end], headers=headers)


def info(call: Call) -> Reply:
    blobs = call.request.flag("blobs")
    return in_json(describe(call.parts["repo"], call.repository, call.sha, blobs))


def list_tree(call: Call) -> Reply:
    folder = call.parts.get("folder", "")
    entries = tree(call.files, folder, call.request.flag("recursive"))
    if folder and not entries:
        raise RefusalError(404, "EntryNotFound", f"{folder} does not exist")
    return page(call, entries)


def resolve(call: Call) -> Reply:
    repository, path = call.repository, call.parts["file"]
    if repository.gated and not (call.user and repository.granted):
        status = 403 if call.user else 401
        raise RefusalError(status, "GatedRepo", "Access to this model is restricted.")
    headers = {"X-Repo-Commit": call.sha}
    if path not in call.files:
        raise RefusalError(404, "EntryNotFound", "Entry not found", headers)
    data = call.files[path]
    if not is_lfs(path, len(data)):
        return contents(call.request, data, repository.served.get(path, data), headers)
    headers |= {
        "X-Linked-Etag": f'"{etag(data, lfs=True)}"',
        "X-Linked-Size": str(len(data)),
        "Location": f"{call.hub.cdn}/cdn/{call.parts['repo']}/{call.sha}/{quote(path)}",
    }
    return Reply(302, b"Found. Redirecting", headers)


def blob(call: Call) -> Reply:
    if call.request.token is not None:
        raise RefusalError(400, "", "Only one auth mechanism allowed")
    repository, path = call.hub.repositories[call.parts["repo"]], call.parts["file"]
    data = repository.commits[call.parts["revision"]][path]
    return contents(call.request, data, repository.served.get(path, data), {})


def contents(request: Request, data: bytes, served: bytes, headers: dict[str, str]) -> Reply:
    """A file or a range of it. HEAD announces `data`, GET sends `served`."""
    tag = etag(data, lfs=request.path.startswith("/cdn/"))
    headers = {"ETag": f'"{tag}"', "Accept-Ranges": "bytes", **headers}
    if request.method == "HEAD":
        return Reply(200, b"", headers, len(data))
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
    if match is None:
        return Reply(200, served, headers)
    size, start = len(served), int(match[1])
    end = min(int(match[2] or size) + 1, size)
    if start >= end:
        raise RefusalError(416, "", "Range not satisfiable", {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Reply(206, served[start:end], headers)


def create(call: Call) -> Reply:
    payload, hub = call.request.json, call.hub
    name = f"{payload.get('organization') or USER}/{payload['name']}"
    call.need_write(name)
    reply = {"url": f"{hub.url}/{name}", "name": name}
    if name in hub.repositories:
        return in_json({"error": "You already created this model repo", **reply}, 409)
    private = payload.get("visibility") == "private"
    hub.repositories[name] = Repository({".gitattributes": b"*.onnx filter=lfs\n"}, private)
    return in_json(reply)


def validate_yaml(call: Call) -> Reply:
    return in_json({"errors": [], "warnings": []})


def branch(call: Call) -> Reply:
    call.need_write(call.parts["repo"])
    ref = f"refs/heads/{call.parts['name']}"
    if ref in call.repository.refs:
        raise RefusalError(409, "", f"Reference already exists: {ref}")
    call.repository.refs[ref] = call.sha
    return in_json({})


def preupload(call: Call) -> Reply:
    call.need_write(call.parts["repo"])
    answers = []
    for file in call.request.json["files"]:
        path, lfs = file["path"], is_lfs(file["path"], file["size"])
        answers.append({"path": path, "uploadMode": "lfs" if lfs else "regular"})
        answers[-1]["shouldIgnore"] = False
        if path in call.files:
            answers[-1]["oid"] = etag(call.files[path], lfs)
    return in_json({"files": answers})


def batch(call: Call) -> Reply:
    call.need_write(call.parts["repo"])
    objects = call.request.json["objects"]
    for item in objects:
        if item["oid"] not in call.hub.objects:
            item["actions"] = {"upload": {"href": f"{call.hub.cdn}/lfs/{item['oid']}"}}
    return in_json({"transfer": "basic", "objects": objects})


def upload(call: Call) -> Reply:
    call.hub.objects[call.parts["oid"]] = call.request.body
    return Reply()


def commit(call: Call) -> Reply:
    call.need_write(call.parts["repo"])
    parent, files = call.sha, call.files
    changes: dict[str, bytes | None] = {}
    for line in call.request.body.splitlines():
        operation = json.loads(line)
        match operation["key"], operation["value"]:
            case "header", {"parentCommit": expected} if expected != parent:
                raise RefusalError(412, "", "A commit has happened since. Please refresh.")
            case "file", {"path": path, "content": content}:
                changes[path] = base64.b64decode(content)
            case "lfsFile", {"path": path, "oid": oid}:
                changes[path] = call.hub.objects[oid]
            case "deletedFile", {"path": path}:
                changes[path] = None
            case "deletedFolder", {"path": folder}:
                changes |= dict.fromkeys(path for path in files if path.startswith(folder))
    revision = call.parts["revision"]
    ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
    page = f"{call.hub.url}/{call.parts['repo']}"
    reply = {}
    if call.request.flag("create_pr"):
        number = 1 + sum(name.startswith("refs/pr/") for name in call.repository.refs)
        ref, reply = f"refs/pr/{number}", {"pullRequestUrl": f"{page}/discussions/{number}"}
    sha = call.repository.commit(changes, ref, parent)
    return in_json({"commitOid": sha, "commitUrl": f"{page}/commit/{sha}", **reply})


REPO = "(?P<repo>[^/]+(?:/[^/]+)??)"
REVISION = "(?P<revision>[^/]+)"
API = f"/api/models/{REPO}"

ROUTES: dict[str, Callable[[Call], Reply]] = {
    "GET /api/models": search,
    f"GET {API}/tree/{REVISION}(?:/(?P<folder>.+))?": list_tree,
    f"GET {API}(?:/revision/{REVISION})?": info,
    f"POST {API}/branch/(?P<name>[^/]+)": branch,
    f"POST {API}/preupload/{REVISION}": preupload,
    f"POST {API}/commit/{REVISION}": commit,
    "POST /api/repos/create": create,
    "POST /api/validate-yaml": validate_yaml,
    rf"POST /{REPO}\.git/info/lfs/objects/batch": batch,
    "PUT /lfs/(?P<oid>[^/]+)": upload,
    f"(?:GET|HEAD) /cdn/{REPO}/(?P<revision>[0-9a-f]{{40}})/(?P<file>.+)": blob,
    f"(?:GET|HEAD) /{REPO}/resolve/{REVISION}/(?P<file>.+)": resolve,
}


def answer(hub: Hub, request: Request) -> Reply:
    """The reply to a request.

    Raises:
        RefusalError: what the request is for does not exist or is not allowed.
    """
    for pattern, function in ROUTES.items():
        if match := re.fullmatch(pattern, f"{request.method} {request.path}"):
            parts = {name: unquote(part) for name, part in match.groupdict().items() if part}
            return function(Call(hub, request, parts))
    raise RefusalError(404, "", f"The local hub has no {request.method} {request.path}")
