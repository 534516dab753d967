"""Files with weights: of this machine, and believed only as far as they reach."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from visattn.models.serialization.finite_weights import format_names, nonfinite_weights

Shapes = dict[str, tuple[int, ...]]

_LONGEST = 2**25  # bytes of a header: names and places of some 200,000 tensors
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_ADDRESS = re.compile(r"\w[\w+.-]+:/")


def require_local_file(path: str | os.PathLike[str], *, missing: str) -> Path:
    """Return a path after checking that a file of this machine lies there.

    Args:
        path: What somebody named.
        missing: What to say where there is none.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is the address of another machine.

    Example:
        >>> require_local_file("https://example.org/m.safetensors", missing="")
        Traceback (most recent call last):
        ValueError: https://example.org/m.safetensors lies on another machine, and nothing is...
    """
    text = os.fspath(path)
    if _ADDRESS.match(text):
        address = re.sub(r"^(\w+):/(?!/)", r"\1://", text)  # pathlib takes a slash away
        raise ValueError(
            f"{address} lies on another machine, and nothing is fetched by itself: download it, "
            "see that it is what you want, and name the file"
        )
    file = Path(text).expanduser()
    try:
        found = file.is_file()
    except (OSError, ValueError):  # too long a name, a zero byte
        found = False
    if not found:
        raise FileNotFoundError(missing)
    return file


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file whose header is short and promises no more than there is room for.

    Raises:
        ValueError: If it is damaged, no safetensors file, or larger than the memory.
    """
    with file.open("rb") as opened:
        begun = opened.read(8)
    if begun[:2] == b"PK" or begun[:2] in _PICKLES:
        raise ValueError(
            f"{file} is no safetensors file but one of torch.save (.pth, .pt, .ckpt, .bin): "
            "it holds weights without their model; build that and pass the file as its weights, "
            "as in --model timm:NAME --weights FILE"
        )
    length = int.from_bytes(begun, "little")
    if length > _LONGEST:
        raise ValueError(
            f"{file} is damaged or no safetensors file: its header would be {length:,} bytes long"
        )
    try:
        with safe_open(file, framework="pt") as opened:
            check_memory(file.stat().st_size, file)
            yield opened
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or no safetensors file: {error}") from error


def tensor_shapes(opened: Any) -> Shapes:
    """Return the shapes of the tensors in a safetensors file, none of which is read.

    Args:
        opened: As `opened_weights` gives it.
    """
    return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def check_memory(count: int, source: object) -> None:
    """Let weights pass that the memory of this machine can hold.

    Args:
        count: Bytes.
        source: Where they come from.

    Raises:
        ValueError: If there are more than that.

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
    """Let a model pass whose weights are numbers.

    Parameters must be finite; buffers may hold infinity, as masks do, but no NaN.

    Args:
        model: Filled with its weights.
        source: Where they come from.

    Raises:
        ValueError: If a tensor holds NaN or infinity; the first few are named.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> _ = nn.init.constant_(model.bias, float("nan"))
        >>> check_loaded_weights(model, "m.safetensors")
        Traceback (most recent call last):
        ValueError: m.safetensors holds NaN or infinity in bias: ...
    """
    if names := nonfinite_weights(model.state_dict(), dict(model.named_parameters())):
        raise ValueError(
            f"{source} holds NaN or infinity in {format_names(names)}: training diverged or the file "
            "is damaged; take an earlier checkpoint"
        )


def summarize_shapes(shapes: Shapes) -> str:
    """Return in words how many tensors there are, and the largest of them.

    Example:
        >>> summarize_shapes({"a": (3, 5), "b": (2,)})
        '2 tensors, the largest a (3, 5)'
    """
    largest = max(shapes, key=lambda name: prod(shapes[name]), default=None)
    told = "" if largest is None else f", the largest {largest} {shapes[largest]}"
    return f"{len(shapes)} tensors{told}"
