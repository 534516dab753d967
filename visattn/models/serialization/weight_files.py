"""Checks of weight files: they are local, undamaged, finite and fit into memory."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from visattn.io.messages import format_names
from visattn.models.serialization.finite_weights import nonfinite_weights

Shapes = dict[str, tuple[int, ...]]

_MAX_HEADER_BYTES = 2**25  # the names and offsets of about 200,000 tensors
_PICKLE_PROTOCOLS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_URL = re.compile(r"\w[\w+.-]+:/")


def require_local_file(path: str | os.PathLike[str], *, missing: str) -> Path:
    """Return a path after checking that it is an existing local file.

    Args:
        path: Path from the user.
        missing: Error message if the file does not exist.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the path is the URL of a remote file.

    Example:
        >>> require_local_file("https://example.org/m.safetensors", missing="")
        Traceback (most recent call last):
        ValueError: https://example.org/m.safetensors lies on another machine, and nothing is...
    """
    text = os.fspath(path)
    if _URL.match(text):
        url = re.sub(r"^(\w+):/(?!/)", r"\1://", text)  # pathlib removes a slash
        raise ValueError(
            f"{url} lies on another machine, and nothing is downloaded automatically: download it, "
            "see that it is what you want, and pass the file"
        )
    file = Path(text).expanduser()
    try:
        is_file = file.is_file()
    except (OSError, ValueError):  # the name is too long or contains a null byte
        is_file = False
    if not is_file:
        raise FileNotFoundError(missing)
    return file


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file after checking the size of its header and of the file.

    Raises:
        ValueError: If the file is damaged, not a safetensors file, or larger than the memory.
    """
    with file.open("rb") as binary_file:
        first_bytes = binary_file.read(8)
    if first_bytes[:2] == b"PK" or first_bytes[:2] in _PICKLE_PROTOCOLS:
        raise ValueError(
            f"{file} is no safetensors file but one of torch.save (.pth, .pt, .ckpt, .bin): "
            "it contains weights without a model; build the model and pass the file as its "
            "weights, as in --model timm:NAME --weights FILE"
        )
    length = int.from_bytes(first_bytes, "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(
            f"{file} is damaged or no safetensors file: its header would be {length:,} bytes long"
        )
    try:
        with safe_open(file, framework="pt") as safetensors_file:
            check_memory(file.stat().st_size, file)
            yield safetensors_file
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or no safetensors file: {error}") from error


def tensor_shapes(opened: Any) -> Shapes:
    """Return the shapes of the tensors in a safetensors file, without reading the tensors.

    Args:
        opened: Open safetensors file from `open_safetensors`.
    """
    return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def check_memory(count: int, source: object) -> None:
    """Raise an error if weights are larger than the physical memory of this machine.

    Args:
        count: Size of the weights in bytes.
        source: File or folder of the weights, for the error message.

    Raises:
        ValueError: If the size exceeds the memory.

    Example:
        >>> check_memory(10**15, "model.ckpt")
        Traceback (most recent call last):
        ValueError: model.ckpt holds 1,000,000.0 GB, but this machine has a memory of ... GB
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if count > memory:
        raise ValueError(
            f"{source} holds {count / 1e9:,.1f} GB, but this machine has a memory of "
            f"{memory / 1e9:,.1f} GB"
        )


def check_loaded_weights(model: nn.Module, source: object) -> None:
    """Raise an error if a model has nonfinite weights, or none but zeros.

    Parameters must be finite; buffers may contain infinity, as masks do, but no NaN.

    Args:
        model: Model with its weights loaded.
        source: File of the weights, for the error message.

    Raises:
        ValueError: If a tensor contains NaN or infinity, of which the message lists the first few,
            or if all parameters are 0.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> _ = nn.init.constant_(model.bias, float("nan"))
        >>> check_loaded_weights(model, "m.safetensors")
        Traceback (most recent call last):
        ValueError: m.safetensors holds NaN or infinity in bias: ...
    """
    if names := nonfinite_weights(model.state_dict(), dict(model.named_parameters())):
        raise ValueError(
            f"{source} holds NaN or infinity in {format_names(names, 5)}: training diverged or the "
            "file is damaged; take an earlier checkpoint"
        )
    parameters = list(model.parameters())
    if parameters and not any(bool(parameter.any()) for parameter in parameters):
        raise ValueError(
            f"{source} holds nothing but zeros: the file was never filled; write it anew"
        )
