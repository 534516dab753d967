"""Models on the Hugging Face hub: `hf://USER/NAME[@REVISION]`, by huggingface_hub as it is."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import huggingface_hub

MODEL_FILE = "model.safetensors"
"""File of a model in its repository."""
_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^\s@]+))?")


class HubName(NamedTuple):
    """A repository on the hub."""

    repo: str
    """User or organization, a slash, and the name of the repository."""
    revision: str | None
    """Branch, tag or commit; None for the default branch."""


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
    if not text.startswith("hf://"):
        return None
    if match := _NAME.fullmatch(text):
        return HubName(match[1], match[2])
    raise ValueError(f"a model on the hub is named hf://USER/NAME[@REVISION], got {text!r}")


def download_file(name: HubName, file: str) -> Path:
    """Return the local copy of a file, downloaded into the cache if the hub has a newer one.

    Raises what huggingface_hub raises, and `ImportError` if it is not installed.
    """
    return Path(_hub().hf_hub_download(name.repo, file, revision=name.revision))


def upload_folder(name: HubName, folder: Path, *, message: str, private: bool = False) -> None:
    """Upload the files of a folder in one commit; create the repository and branch if needed.

    Raises what huggingface_hub raises, and `ImportError` if it is not installed.
    """
    hub = _hub()
    hub.create_repo(name.repo, private=private, exist_ok=True)
    if name.revision:
        hub.create_branch(name.repo, branch=name.revision, exist_ok=True)
    hub.upload_folder(
        repo_id=name.repo, folder_path=folder, revision=name.revision, commit_message=message
    )


def _hub() -> "huggingface_hub.HfApi":
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError("hf:// names need huggingface_hub: pip install 'visattn[hub]'") from error
    return huggingface_hub.HfApi(library_name="visattn")


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
        yield
    except OSError as error:
        raise ConnectionError(
            f"the pretrained weights of {model} are not in the cache, and cannot be downloaded: "
            "check the network, or pass a file of weights instead (--weights FILE)"
        ) from error
