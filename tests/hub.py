"""A hub on this machine: enough of the real one's HTTP for `datasets` and `transformers`.

It serves repositories that a test writes: of data sets a card that names configurations and splits,
and one Parquet file for each of them; of models the files of each commit of a branch that moves.
"""

import hashlib
import http.server
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Files = Mapping[str, bytes]
Reply = tuple[int, bytes, dict[str, str]]


@dataclass(frozen=True)
class Request:
    """What a client asks for.

    Attributes:
        method: GET or HEAD.
        path: of the address, without the query.
        recursive: whether a listing has what is below folders, too.
        token: of the user, "" for none.
    """

    method: str
    path: str
    recursive: bool
    token: str


# Called before the hub replies: a fault instead of the reply, or None.
Fault = Callable[[Request], Reply | None]


def repository(
    rows: Mapping[tuple[str, str], list[dict[str, Any]]], schema: pa.Schema | None = None
) -> Files:
    """The files of a data set whose rows are given by (configuration, split)."""
    files = {"README.md": _card(list(rows))}
    for (configuration, split), content in rows.items():
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(content, schema=schema), sink)
        files[f"{configuration}/{split}-00000-of-00001.parquet"] = sink.getvalue()
    return files


def _card(names: list[tuple[str, str]]) -> bytes:
    lines = ["---", "configs:"]
    for configuration, split in names:
        lines += [f"- config_name: {configuration}", "  data_files:"]
        lines += [f"  - split: {split}", f"    path: {configuration}/{split}-*"]
    return "\n".join([*lines, "---", ""]).encode()


@dataclass
class Model:
    """A model whose branch moves on to the next commit whenever it was asked for, up to the last.

    Attributes:
        commits: the files of each.
        asked: how often the branch was asked for.
        fetched: files whose content was asked for, not only what is known of them.
        token: of a gated repository what opens its files; which there are it tells everybody.
    """

    commits: Mapping[str, Files]
    asked: int = 0
    fetched: set[str] = field(default_factory=set)
    token: str = ""

    def reply(self, parts: list[str], request: Request) -> Reply:
        """The answer to a path below the repository."""
        token = request.token
        match parts:
            case ["revision", commit] if commit in self.commits:
                return self._info(commit)
            case [] | ["revision", "main"]:
                self.asked += 1
                return self._info([*self.commits][min(self.asked, len(self.commits)) - 1])
            case ["tree", commit, *folder] if commit in self.commits:
                files = self.commits[commit]
                return _json(_listing(files, "/".join(folder), request.recursive))
            case ["resolve", *_] if self.token and token != self.token:
                return 403 if token else 401, b"", {"X-Error-Code": "GatedRepo"}
            case ["resolve", commit, *rest] if commit in self.commits:
                if request.method == "GET":
                    self.fetched.add("/".join(rest))
                return _file(self.commits[commit].get("/".join(rest)), commit)
        return 404, b"", {"X-Error-Code": "RevisionNotFound"}

    def _info(self, commit: str) -> Reply:
        files = self.commits[commit]
        siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
        return _json({"id": "made/up", "sha": commit, "siblings": siblings})


@contextmanager
def hub(
    repositories: Mapping[str, Files],
    models: Mapping[str, Model] | None = None,
    fault: Fault = lambda request: None,
    requests: list[Request] | None = None,
) -> Iterator[str]:
    """The address of a hub with these repositories, while the block lasts.

    Args:
        repositories: the files of each data set, by its id.
        models: by id.
        fault: what goes wrong; tests change what it does while the hub is there.
        requests: gets every request.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlparse(self.path)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            recursive = "recursive=true" in address.query.lower()
            request = Request(self.command, unquote(address.path), recursive, token)
            if requests is not None:
                requests.append(request)
            reply = fault(request) or _reply(request, repositories, models or {})
            status, body, headers = reply
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Tests are silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _reply(
    request: Request, repositories: Mapping[str, Files], models: Mapping[str, Model]
) -> Reply:
    match request.path.strip("/").split("/"):
        case ["api", "models", owner, name, *rest] if f"{owner}/{name}" in models:
            return models[f"{owner}/{name}"].reply(rest, request)
        case [owner, name, "resolve", *rest] if f"{owner}/{name}" in models:
            return models[f"{owner}/{name}"].reply(["resolve", *rest], request)
        case ["api", "datasets", owner, name, *rest] if f"{owner}/{name}" in repositories:
            files = repositories[f"{owner}/{name}"]
            if rest[:1] == ["tree"]:
                return _json(_listing(files, "/".join(rest[2:]), request.recursive))
            siblings = [{"rfilename": path} for path in files]
            return _json({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings})
        case ["datasets", owner, name, "resolve", _, *rest]:
            return _file(repositories.get(f"{owner}/{name}", {}).get("/".join(rest)), COMMIT)
    return 404, b"", {"X-Error-Code": "RepoNotFound"}


def _file(data: bytes | None, commit: str) -> Reply:
    if data is None:
        return 404, b"", {"X-Error-Code": "EntryNotFound"}
    tag = hashlib.sha256(data).hexdigest()
    return 200, data, {"ETag": f'"{tag}"', "X-Repo-Commit": commit}


def _listing(files: Files, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders right below a folder, or all that are below it."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for path, data in files.items():
        if not path.startswith(prefix):
            continue
        name, *below = path.removeprefix(prefix).split("/")
        oid = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        if below:
            found[name] = {"type": "directory", "path": prefix + name, "oid": oid}
        if recursive or not below:
            found[path] = {"type": "file", "size": len(data), "path": path, "oid": oid}
    return list(found.values())


def _json(value: object) -> Reply:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}
