"""Files of models on the Hugging Face hub: names, download with checked hashes, upload."""

import hashlib
import logging
import os
import re
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.io.safe_text import short_repr
from visattn.models.saving.stalled_downloads import (
    CHUNK_BYTES,
    PATIENCE_SECONDS,
    DownloadWatch,
    StalledDownload,
)

if TYPE_CHECKING:
    import huggingface_hub

_SCHEME = "hf://"
MODEL_FILE = "model.safetensors"
"""File of a model in its repository."""
_NAME = re.compile(rf"{_SCHEME}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
_COMMIT_HASH = re.compile("[0-9a-f]{40}")
_CONTENT_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_ANSWERS_LOCK = threading.RLock()
_CHUNK_BYTES = 2**20
_UNAUTHORIZED = (401, 403)


class HubName(NamedTuple):
    """Name of a repository on the hub.

    Args:
        repo: User or organization, a slash, and the name of the repository.
        revision: Branch, tag or commit; None for the default branch.
    """

    repo: str
    revision: str | None

    def __str__(self) -> str:
        """Return the name as users write it.

        Example:
            >>> str(HubName("user/name", "v1"))
            'hf://user/name@v1'
        """
        return f"{_SCHEME}{self.repo}{f'@{self.revision}' if self.revision else ''}"


def parse_hub_name(text: str) -> HubName | None:
    """Return the repository that `hf://USER/NAME[@REVISION]` names; None for other texts.

    Raises:
        ValueError: If the text starts with `hf://`, but is not such a name.

    Example:
        >>> parse_hub_name("hf://user/name@v1")
        HubName(repo='user/name', revision='v1')
        >>> parse_hub_name("model.safetensors") is None
        True
    """
    return _parse(text) if text.startswith(_SCHEME) else None


def _parse(text: str) -> HubName:
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"a model on the hub is named hf://USER/NAME[@REVISION], got {text!r}")
    return HubName(match["repo"], match["revision"])


def download_file(name: HubName, file: str) -> Path:
    """Return the local copy of a file, downloaded into the cache if the hub has a newer one.

    Without network, or with `HF_HUB_OFFLINE=1`, the cached copy is used. The content is compared
    with the hash that the hub announced. huggingface_hub makes paths of the hashes in an answer, so
    an answer in which they are none is refused before anything is written.

    Raises:
        ConnectionError: If the hub cannot be reached and the file is not in the cache, or sends
            hardly anything.
        FileNotFoundError: If the repository, the revision or the file does not exist.
        ImportError: If huggingface_hub is not installed, or of an unknown version.
        PermissionError: If the token is invalid or lacks a permission.
        ValueError: If the content does not have its hash, or the hub announces none.
    """
    api = _api()
    watch = DownloadWatch()
    with _plain_errors(name, f"file {file}"), _checked_answers(name, watch) as announced:
        path = Path(watch.run(lambda: api.hf_hub_download(name.repo, file, revision=name.revision)))
    _check_content(path, announced[-1] if announced else None, f"{name} is damaged: {file}")
    return path


def cached_model(name: str) -> Path:
    """Return the local copy of the model `hf://USER/NAME[@REVISION]`, as last downloaded.

    Raises:
        FileNotFoundError: If it was not downloaded.
        ValueError: If it is no such name.
    """
    from huggingface_hub import try_to_load_from_cache

    parsed = _parse(name)
    path = try_to_load_from_cache(parsed.repo, MODEL_FILE, revision=parsed.revision)
    if not isinstance(path, str):
        raise FileNotFoundError(f"{name} is not in the cache")
    return Path(path)


@contextmanager
def _checked_answers(name: HubName, watch: DownloadWatch) -> Iterator[list[str]]:
    """Let huggingface_hub read only answers whose hashes are hashes; yield those of contents.

    Files come by plain HTTP in parts, which the watch counts.
    """
    from huggingface_hub import constants, errors, file_download

    plain = getattr(file_download, "get_hf_file_metadata", None)
    fetch = getattr(file_download, "http_get", None)
    if plain is None or fetch is None:
        raise ImportError("this version of huggingface_hub is not supported: install an older one")
    announced: list[str] = []

    def check(kind: str, text: str | None, pattern: re.Pattern[str]) -> None:
        if text is not None and not pattern.fullmatch(text):
            raise ValueError(
                f"{name} is refused: the hub, or a mirror that HF_ENDPOINT names, announces "
                f"{short_repr(text)} as the hash of the {kind}"
            )

    def checked(*args: Any, **options: Any) -> Any:
        try:
            metadata = plain(*args, **options)
        except errors.RemoteEntryNotFoundError as error:
            check("commit", error.response.headers.get("X-Repo-Commit"), _COMMIT_HASH)
            raise
        check("commit", metadata.commit_hash, _COMMIT_HASH)
        check("content", metadata.etag, _CONTENT_HASH)
        announced.append(metadata.etag or "")
        return metadata

    def fetched(url: str, temp_file: Any, **options: Any) -> None:
        fetch(url, watch.watched(temp_file), **options)

    # huggingface_hub has no hook between an answer and what it does with it: its functions are
    # replaced for the time of one download, in one thread at a time.
    replaced = (
        (file_download, "get_hf_file_metadata", watch.timed(checked)),
        (file_download, "http_get", watch.timed(fetched)),
        (constants, "DOWNLOAD_CHUNK_SIZE", CHUNK_BYTES),
        (constants, "HF_HUB_DISABLE_XET", True),
    )
    with _ANSWERS_LOCK:
        before = [getattr(module, attribute) for module, attribute, _ in replaced]
        for module, attribute, value in replaced:
            setattr(module, attribute, value)
        try:
            yield announced
        finally:
            for (module, attribute, _), value in zip(replaced, before, strict=True):
                setattr(module, attribute, value)


def _check_content(path: Path, announced: str | None, start: str) -> None:
    """Compare a cached file with its hash, and delete it if they differ.

    The cache names the content by the hash and links to it. Where links are not supported, the hash
    is the one that the hub has announced; without network a model file has its own checksum.
    """
    from huggingface_hub import constants

    linked = path.is_symlink()
    blob = Path(os.path.normpath(path.parent / path.readlink())) if linked else path
    expected = blob.name if linked else announced
    if expected is None:
        return
    if not _CONTENT_HASH.fullmatch(expected):
        raise ValueError(f"{start} is cached as {short_repr(expected)}, which is no hash: refused")
    if expected == _content_hash(blob, expected):
        return
    cache = Path(constants.HF_HUB_CACHE).resolve()
    for copy in (blob.resolve(), blob, path):  # a blob may link to a store for all repositories
        if copy.parent.resolve().is_relative_to(cache):
            copy.unlink(missing_ok=True)
    raise ValueError(
        f"{start} does not have the hash {expected[:12]}... of the hub; its cached copy was "
        "deleted, load it again"
    )


@contextmanager
def plain_download_errors(model: str) -> Iterator[None]:
    """Turn a failed download of pretrained weights into one error that says what to do.

    Example:
        >>> with plain_download_errors("timm:resnet18"):
        ...     raise OSError("no network")
        Traceback (most recent call last):
        ConnectionError: the pretrained weights of timm:resnet18 are not in the cache, and ...
    """
    try:
        with _quiet_retries():
            yield
    except OSError as error:
        raise ConnectionError(
            f"the pretrained weights of {model} are not in the cache, and cannot be downloaded: "
            "check the network, or pass a file of weights instead (--weights FILE)"
        ) from error


@contextmanager
def _quiet_retries() -> Iterator[None]:
    """Silence the warnings of huggingface_hub about each attempt; the error says what matters."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def upload_folder(name: HubName, folder: Path, *, message: str, private: bool = False) -> str:
    """Upload the files of a folder in one commit, and return the address of the commit.

    The repository, which is then `private` or not, and a branch of the name `revision` are created
    if they do not exist.

    Raises:
        ConnectionError: If the hub cannot be reached.
        ImportError: If huggingface_hub is not installed.
        OSError: If the hub refuses the files.
        PermissionError: If there is no token, or it is invalid or may not write.
    """
    api = _api()
    from huggingface_hub import CommitOperationAdd

    with _plain_errors(name, "place to write"):
        api.create_repo(name.repo, private=private, exist_ok=True)
        if name.revision:
            api.create_branch(name.repo, branch=name.revision, exist_ok=True)
        additions = [CommitOperationAdd(file.name, file) for file in sorted(folder.iterdir())]
        commit = api.create_commit(
            name.repo, additions, revision=name.revision, commit_message=message
        )
    return commit.commit_url


def _api() -> "huggingface_hub.HfApi":
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ImportError("hf:// names need huggingface_hub: pip install 'visattn[hub]'") from error
    return HfApi(library_name="visattn")


def _content_hash(file: Path, like: str) -> str:
    """Return the hash by which the hub names a file: SHA-256 for large files, else that of git."""
    if len(like) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _plain_errors(name: HubName, missing: str) -> Iterator[None]:
    """Turn the exceptions of huggingface_hub into built-in ones with one line each."""
    from huggingface_hub import errors

    login = "set HF_TOKEN, or log in with `hf auth login`"
    # The base class of the errors of the HTTP library that huggingface_hub uses.
    http_error: type[Exception] = errors.HTTPError  # type: ignore[reportPrivateImportUsage]
    try:
        with _quiet_retries():
            yield
    except StalledDownload as error:
        raise ConnectionError(
            f"{name} cannot be downloaded: the hub, or a mirror that HF_ENDPOINT names, sent less "
            f"than {CHUNK_BYTES // 1024} kB in {PATIENCE_SECONDS:.0f} s: try later, or check the "
            "network and HF_ENDPOINT"
        ) from error
    except errors.GatedRepoError as error:
        reason = f"{name} is gated: accept its terms on its page, and {login}"
        raise PermissionError(reason) from error
    except errors.RepositoryNotFoundError as error:
        reason = f"there is no repository {name}, or it is private and the token may not read it"
        raise FileNotFoundError(f"{reason}: check the name, or {login}") from error
    except errors.RevisionNotFoundError as error:
        reason = f"{name.repo} has no branch, tag or commit {name.revision!r}"
        raise FileNotFoundError(reason) from error
    except errors.RemoteEntryNotFoundError as error:
        reason = f"{name} has no {missing}: it does not hold a model that visattn.save uploaded"
        raise FileNotFoundError(reason) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        cause = error.__cause__
        answered = isinstance(cause, errors.HfHubHTTPError | errors.FileMetadataError)
        said = f" ({textwrap.shorten(str(cause), 300)})" if answered else ""
        reason = (
            f"{name} is not in the cache, and the hub {'failed' if said else 'cannot be reached'}"
        )
        advice = (
            "try later, or check HF_ENDPOINT" if said else "check the network and HF_HUB_OFFLINE"
        )
        raise ConnectionError(f"{reason}{said}: {advice}") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{name} is not a valid name on the hub: {error}") from error
    except ValueError as error:
        if str(error).startswith(str(name)):  # of `_checked_answers`
            raise
        reason = f"{name} cannot be loaded: the hub, or a mirror that HF_ENDPOINT names, answers"
        raise ConnectionError(f"{reason} what cannot be read ({error})") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        said = error.server_message or "no message"
        if status in _UNAUTHORIZED:
            reason = f"the hub refuses {name} (status {status}, {said})"
            raise PermissionError(f"{reason}: {login}, with a token that may do this") from error
        raise OSError(f"the hub failed at {name} (status {status}, {said}): try later") from error
    except (http_error, RuntimeError) as error:  # no answer; an upload that broke off
        reason = f"the connection to the hub failed at {name} ({error.__cause__ or error})"
        raise ConnectionError(f"{reason}: check the network, then try again") from error
