"""Files on the web, read by their URLs.

A URL is what the user typed or listed, so any host is read, also one of the own network. A redirect
is what a server says: it may not lead from a public host to a private one.
"""

import ipaddress
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from visattn.io.archives import ARCHIVE_SUFFIXES
from visattn.io.locations import Location, check_length
from visattn.io.stores import Store, StoreFile, store_files

_TIMEOUT = 20.0  # seconds without an answer
_MAX_SECONDS = 300.0  # of a file; else a server may send a byte every 19 seconds
_CHUNK = 2**16
_TABLES = (".parquet", ".arrow")


def url_files(url: str) -> list[Location]:
    """Return the file of a URL, or of a store all files below it.

    Args:
        url: `http://` and `https://` name one file; others, such as `s3://` and `memory://`, are
            read by fsspec.

    Raises:
        FileNotFoundError: If a store has no such file.
        ImportError: If a package is missing.
        ValueError: If the scheme is unknown, or an archive or table is not on this machine.

    Example:
        >>> url_files("https://example.org/dogs/a%20dog.jpg?size=2")[0].relative.name
        'a dog.jpg'
    """
    parts = urlsplit(url)
    if parts.path.lower().endswith((*ARCHIVE_SUFFIXES, *_TABLES)):
        raise ValueError(f"{url} is an archive or a table: download it, and pass the file")
    if parts.scheme.lower() in ("http", "https"):
        return [WebFile(url)]
    return store_files(url)


def url_file(url: str) -> Location:
    """Return the file of a URL, which is not looked up before it is read.

    Raises:
        ImportError: If a package is missing.
        ValueError: If the scheme is unknown.

    Example:
        >>> url_file("memory://photos/a.jpg").relative.name
        'a.jpg'
    """
    if urlsplit(url).scheme.lower() in ("http", "https"):
        return WebFile(url)
    store = Store(url)
    return StoreFile(url, store, store.path, PurePosixPath(PurePosixPath(store.path).name))


class WebFile(Location):
    """A file on the web.

    Args:
        url: Its URL.

    Raises:
        ValueError: If it has no host, or holds a password, which records would show.

    Example:
        >>> WebFile("https://example.org/dogs/1.jpg").source
        ('example.org', 'dogs')
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url} names no host")
        if parts.username or parts.password:
            raise ValueError(
                f"the URL of {parts.hostname} holds a user name or password, which records and "
                "pages would show: download the file"
            )
        *folders, name = unquote(parts.path).split("/")
        name = name if name not in ("", ".", "..") else parts.hostname
        folders = [folder for folder in folders if folder not in ("", ".", "..")]
        super().__init__(url, (parts.hostname, *folders), PurePosixPath(name))

    def fetch(self, max_bytes: int) -> bytes:
        """Return the content, in at most 300 seconds.

        Raises:
            OSError: If the server does not answer, or not with the file.
            ValueError: If the file is longer.
        """
        request = urllib.request.Request(self.address, headers={"User-Agent": "visattn"})
        try:
            with _opener().open(request, timeout=_TIMEOUT) as response:
                check_length(int(response.headers.get("Content-Length") or 0), max_bytes)
                return _read(response, max_bytes)
        except urllib.error.HTTPError as error:
            raise OSError(f"the server answers {error.code}, {error.reason}") from error
        except urllib.error.URLError as error:
            raise OSError(f"the server cannot be reached: {error.reason}") from error
        except TimeoutError as error:
            raise OSError(f"the server sent nothing for {_TIMEOUT:g} seconds") from error
        except HTTPException as error:
            raise OSError(f"the answer is incomplete: {type(error).__name__}") from error


def _read(response: Any, max_bytes: int) -> bytes:
    end = time.monotonic() + _MAX_SECONDS
    content = bytearray()
    while chunk := response.read1(_CHUNK):
        content += chunk
        check_length(len(content), max_bytes)
        if time.monotonic() > end:
            raise OSError(f"the server took more than {_MAX_SECONDS:g} seconds")
    if response.length:
        raise OSError(f"the answer is incomplete: {response.length:,} bytes are missing")
    return bytes(content)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from a public host to a private one."""

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not on the web")
        if _is_public(req.full_url) and not _is_public(newurl):
            raise urllib.error.URLError(f"it redirects to {newurl}, in a private network")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_public(url: str) -> bool:
    """Return whether all addresses of a host are those of the internet."""
    parts = urlsplit(url)
    try:
        known = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError:  # behind a proxy, names may be unknown here
        return True
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_global for each in known)


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens http and https, and neither files nor ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener
