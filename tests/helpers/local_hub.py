"""A local server that speaks the protocol of the Hugging Face hub, as far as models need it."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

TOKENS = {"hf_write": "write", "hf_read": "read"}
"""Valid tokens and their permission."""


class StoredFile(NamedTuple):
    """Content of a file, and whether it is large (LFS)."""

    content: bytes
    large: bool

    @property
    def etag(self) -> str:
        """Hash by which the hub names the file."""
        if self.large:
            return hashlib.sha256(self.content).hexdigest()
        blob = f"blob {len(self.content)}\0".encode() + self.content
        return hashlib.sha1(blob).hexdigest()


@dataclass
class Repository:
    """Branches and commits of a repository."""

    private: bool = False
    gated: bool = False
    refs: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=lambda: {"0" * 40: {}})
    messages: list[str] = field(default_factory=list[str])

    def commit(self, branch: str, files: dict[str, StoredFile], message: str = "") -> str:
        """Add files to a branch and return the commit."""
        tree = self.commits[self.refs[branch]] | files
        self.messages.append(message)
        oid = hashlib.sha1(f"{len(self.messages)}{branch}".encode()).hexdigest()
        self.commits[oid], self.refs[branch] = tree, oid
        return oid


class LocalHub(ThreadingHTTPServer):
    """The server; `corrupt` changes what is downloaded, `fail` answers everything with a status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.corrupt: Callable[[bytes], bytes] = lambda content: content
        self.fail = 0
        self.headers: dict[str, str] = {}  # that replace those of a file
        self.slow = ""  # pattern of requests that are answered in pieces
        self.piece, self.pause = 1, 0.02  # bytes, seconds

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def storage_url(self) -> str:
        """Address of large files: another host, to which no token may be sent."""
        return f"http://localhost:{self.server_address[1]}"


class SlowFile:
    """Writes in pieces, with a pause after each."""

    def __init__(self, file: Any, piece: int, pause: float) -> None:
        self.file, self.piece, self.pause = file, piece, pause

    def write(self, content: bytes) -> None:
        for at in range(0, len(content), self.piece):
            self.file.write(content[at : at + self.piece])
            threading.Event().wait(self.pause)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class HubError(Exception):
    """An answer with an error: status, code and message."""


class HubHandler(BaseHTTPRequestHandler):
    """One request."""

    server: LocalHub  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    routes: ClassVar[list[tuple[str, str]]] = [
        (r"POST /api/validate-yaml", "validate"),
        (r"POST /api/repos/create", "create"),
        (r"POST /api/models/([^/]+/[^/]+)/branch/([^/]+)", "branch"),
        (r"POST /api/models/([^/]+/[^/]+)/preupload/([^/]+)", "preupload"),
        (r"POST /api/models/([^/]+/[^/]+)/commit/([^/]+)", "commit"),
        (r"GET /api/models/([^/]+/[^/]+)", "information"),
        (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
        (r"(?:GET|HEAD) /([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
        (r"PUT /objects/(\w+)", "upload"),
        (r"(?:GET|HEAD) /objects/(\w+)", "download"),
    ]

    def handle_request(self) -> None:
        """Answer with the method of the first matching route."""
        line = f"{self.command} {self.path.partition('?')[0]}"
        if self.server.slow and re.match(self.server.slow, line):
            self.wfile: Any = SlowFile(self.wfile, self.server.piece, self.server.pause)
        self.server.requests.append(line)
        self.body = self.read_body()
        try:
            if self.server.fail:
                raise HubError(self.server.fail, "", "maintenance")
            self.permission = self.authorize()
            for pattern, name in self.routes:
                if match := re.fullmatch(pattern, line):
                    return getattr(self, name)(*map(unquote, match.groups()))
            raise HubError(404, "", line)
        except HubError as error:
            status, code, message = error.args
            self.answer({"error": message}, status, {"X-Error-Code": code,
                                                     "X-Error-Message": message})  # fmt: skip

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    def read_body(self) -> bytes:
        """Return the body of the request, which may come in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def authorize(self) -> str:
        """Return the permission of the token: write, read or none."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in TOKENS:
            raise HubError(401, "", "Invalid credentials in Authorization header")
        return TOKENS.get(token, "")

    def answer(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send JSON or bytes."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def repository(self, repo: str, *, write: bool = False) -> Repository:
        """Return a repository that the token may read or write."""
        repository = self.server.repositories.get(repo)
        if repository is None or (repository.private and not self.permission):
            raise HubError(401 if not self.permission else 404, "RepoNotFound", "not found")
        if repository.gated and not self.permission:
            raise HubError(401, "GatedRepo", "gated")
        if write and self.permission != "write":
            raise HubError(403, "", "you have read access only")
        return repository

    def validate(self) -> None:
        front_matter = json.loads(self.body)["content"].split("---\n")[1]
        assert "library_name: visattn" in front_matter
        self.answer({"errors": [], "warnings": []})

    def create(self) -> None:
        options = json.loads(self.body)
        repo = f"{options.get('organization') or 'user'}/{options['name']}"
        if not self.permission:
            raise HubError(401, "", "Invalid username or password.")
        if self.permission != "write":
            raise HubError(403, "", "you have read access only")
        if repo in self.server.repositories:
            return self.answer({"url": f"{self.server.url}/{repo}", "error": "exists"}, 409)
        private = options.get("private") or options.get("visibility") == "private"
        self.server.repositories[repo] = Repository(private=bool(private))
        return self.answer({"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})

    def information(self, repo: str) -> None:
        self.answer({"id": repo, "sha": self.repository(repo).refs["main"]})

    def branch(self, repo: str, name: str) -> None:
        repository = self.repository(repo, write=True)
        if name in repository.refs:
            raise HubError(409, "", "Reference already exists")
        repository.refs[name] = repository.refs["main"]
        self.answer({})

    def preupload(self, repo: str, revision: str) -> None:
        self.tree(self.repository(repo, write=True), revision)
        files = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith((".md", ".yaml")) else "lfs",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        self.answer({"files": files})

    def batch(self, repo: str) -> None:
        self.repository(repo, write=True)
        objects = [
            {
                **each,
                "actions": {"upload": {"href": f"{self.server.storage_url}/objects/{each['oid']}"}},
            }
            for each in json.loads(self.body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        assert "Authorization" not in self.headers
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(400, "", "wrong hash")
        self.server.large[oid] = self.body
        self.answer({})

    def commit(self, repo: str, branch: str) -> None:
        repository = self.repository(repo, write=True)
        header, *items = map(json.loads, self.body.splitlines())
        files: dict[str, StoredFile] = {}
        for item in items:
            value = item["value"]
            large = item["key"] == "lfsFile"
            content = (
                self.server.large[value["oid"]] if large else base64.b64decode(value["content"])
            )
            files[value["path"]] = StoredFile(content, large)
        oid = repository.commit(branch, files, header["value"]["summary"])
        self.answer({"commitUrl": f"{self.server.url}/{repo}/commit/{oid}", "commitOid": oid})

    def tree(self, repository: Repository, revision: str) -> tuple[str, dict[str, StoredFile]]:
        """Return commit and files of a revision."""
        oid = repository.refs.get(revision, revision)
        if oid not in repository.commits:
            raise HubError(404, "RevisionNotFound", "Invalid rev id")
        return oid, repository.commits[oid]

    def resolve(self, repo: str, revision: str, file: str) -> None:
        oid, files = self.tree(self.repository(repo), revision)
        if file not in files:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound", **self.server.headers})
        stored = files[file]
        headers = {"X-Repo-Commit": oid, "ETag": f'"{stored.etag}"'}
        if not stored.large:
            return self.answer(self.server.corrupt(stored.content), 200, headers)
        self.server.large[stored.etag] = stored.content
        headers |= {
            "X-Linked-Etag": f'"{stored.etag}"',
            "X-Linked-Size": str(len(stored.content)),
            "Location": f"{self.server.storage_url}/objects/{stored.etag}",
        }
        headers |= self.server.headers
        return self.answer(b"", 302, headers)

    def download(self, oid: str) -> None:
        assert "Authorization" not in self.headers
        self.answer(self.server.corrupt(self.server.large[oid]))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay silent."""
