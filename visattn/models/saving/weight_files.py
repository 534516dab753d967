"""Weight files: local, undamaged, finite, and small enough for the memory.

Reading a file executes no code. Files are written atomically; damaged files and files of other
libraries are refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from visattn.io.atomic import atomic_write
from visattn.io.messages import format_names
from visattn.io.safe_text import parse_json

Shapes = dict[str, tuple[int, ...]]

_MAX_HEADER_BYTES = 2**25  # the names and offsets of about 200,000 tensors
_PICKLE_PROTOCOLS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_URL = re.compile(r"\w[\w+.-]+:/")


def require_local_file(path: str | os.PathLike[str], *, missing: str) -> Path:
    """Return a path after checking that it is an existing local file.

    Raises:
        FileNotFoundError: With the message `missing`, if the file does not exist.
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


def begins_as_safetensors(first_bytes: bytes) -> bool:
    r"""Whether a file begins with the length of a header, in eight bytes, and with that header.

    The length alone may look like something else: 19,280 is "PK", and 640 begins a pickle.

    Example:
        >>> begins_as_safetensors((640).to_bytes(8, "little") + b'{"weight"')
        True
        >>> begins_as_safetensors(b"\x80\x02}q\x00.")
        False
    """
    return first_bytes[4:9] == b"\0\0\0\0{"


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file after checking the size of its header and of the file.

    Raises:
        ValueError: If the file is damaged, not a safetensors file, or larger than the memory.
    """
    with file.open("rb") as binary_file:
        first_bytes = binary_file.read(9)
    is_torch = first_bytes[:2] == b"PK" or first_bytes[:2] in _PICKLE_PROTOCOLS
    if is_torch and not begins_as_safetensors(first_bytes):
        raise ValueError(
            f"{file} is no safetensors file but one of torch.save (.pth, .pt, .ckpt, .bin): "
            "it contains weights without a model; build the model and pass the file as its "
            "weights, as in --model timm:NAME --weights FILE"
        )
    length = int.from_bytes(first_bytes[:8], "little")
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
    """Return the shapes of the tensors in a file of `open_safetensors`, which are not read."""
    return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def shapes_of(weights: Mapping[str, Tensor]) -> Shapes:
    """Return the shapes of weights by name.

    Example:
        >>> shapes_of(nn.Linear(3, 2).state_dict())
        {'weight': (2, 3), 'bias': (2,)}
    """
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


class Mismatch(NamedTuple):
    """Names of weights that do not fit a model."""

    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]


def find_mismatch(expected: Shapes, shapes: Shapes) -> Mismatch:
    """Return the names of weights that do not fit those that a model expects.

    Example:
        >>> find_mismatch({"a": (2,), "b": (3,)}, {"a": (5,), "c": ()})
        Mismatch(missing=['b'], unexpected=['c'], reshaped=['a'])
    """
    counters = {key for key in expected if key.endswith("num_batches_tracked")}  # often missing
    return Mismatch(
        sorted(set(expected) - set(shapes) - counters),
        sorted(set(shapes) - set(expected)),
        [key for key in expected if key in shapes and expected[key] != shapes[key]],
    )


def describe_mismatch(expected: Shapes, shapes: Shapes) -> str:
    """Return which weights do not fit a model, with two examples of each kind.

    Example:
        >>> describe_mismatch({"a": (2,), "b": (3,)}, {"a": (5,)})
        "1 missing keys ['b'], 0 unexpected keys [], 1 of another shape ['a [5] instead of [2]']"
    """
    missing, unexpected, reshaped = find_mismatch(expected, shapes)
    examples = [
        f"{name} {list(shapes[name])} instead of {list(expected[name])}" for name in reshaped[:2]
    ]
    return (
        f"{len(missing)} missing keys {missing[:2]}, {len(unexpected)} unexpected keys "
        f"{unexpected[:2]}, {len(reshaped)} of another shape {examples}"
    )


def check_memory(count: int, source: object) -> None:
    """Raise an error if weights of so many bytes exceed the physical memory of this machine.

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


FORMAT = "visattn-1"


def write_safetensors(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write weights and a description of plain values to one file.

    Raises:
        ValueError: If the name does not end in .safetensors.
        OSError: If the folder is not writable.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_safetensors(folder / "m.safetensors", {"w": torch.ones(2)}, {"class": "Net"})
        >>> read_safetensors(folder / "m.safetensors")
        ({'w': tensor([1., 1.])}, {'class': 'Net'})
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise ValueError(f"the file name of a model must end in .safetensors, got {target.name}")
    tensors = {  # tied tensors are written separately
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    described = json.dumps(description, allow_nan=False)
    header = {"format": FORMAT, "checksum": _checksum(tensors, described), "description": described}
    # A single entry: safetensors writes several entries in random order.
    atomic_write(target, save(tensors, metadata={"visattn": json.dumps(header)}))


def read_safetensors(
    path: str | os.PathLike[str], *, check: Callable[[dict[str, Any], Shapes], object] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description in a file.

    Args:
        path: The file.
        check: Called with the description and the shapes of the weights before any of them is
            read; raises if they do not fit together.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, was not written by `write_safetensors`, is larger than
            the memory of this machine, or the path is remote.
    """
    source = require_local_file(path, missing=f"no model at {path}; `visattn export` writes one")
    with open_safetensors(source) as file:
        header = _header(source, (file.metadata() or {}).get("visattn", ""))
        described = _mapping(header["description"])
        if described is None:
            raise ValueError(f"{source} is damaged: its model description is not a mapping")
        if check is not None:
            check(described, tensor_shapes(file))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["checksum"] != _checksum(weights, header["description"]):
        raise ValueError(
            f"{source} is damaged: its checksum does not match; download, export or install it "
            "again"
        )
    return weights, described


def _header(source: Path, text: str) -> dict[str, str]:
    """Return the header written by `write_safetensors`, after checking its format."""
    header = _mapping(text)
    keys = {"format", "checksum", "description"}
    if header is None or set(header) != keys or header["format"] != FORMAT:
        raise ValueError(
            f"{source} is a safetensors file, but not an exported visattn model (format {FORMAT}, "
            "written by `visattn export`); load weights of another model with "
            "--model timm:NAME --weights FILE or --model FILE.py:NAME --weights FILE"
        )
    return {name: str(value) for name, value in header.items()}


def _mapping(text: str) -> dict[str, Any] | None:
    """Return the mapping in a JSON string, or None if it is not valid."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _checksum(weights: Mapping[str, Tensor], description: str) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def all_finite(tensors: list[Tensor]) -> bool:
    """Return whether all tensors are free of NaN and infinity.

    Example:
        >>> all_finite([torch.ones(3), torch.tensor([1e38, -1e38])])
        True
        >>> all_finite([torch.ones(3), torch.tensor([0.0, torch.nan])])
        False
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating:
        return True
    # The largest absolute value is NaN or infinite if any is, and a GPU is waited for only once.
    largest = torch.nn.utils.get_total_norm(floating, norm_type=torch.inf)
    return bool(largest.isfinite())


def nonfinite_weights(state: Mapping[str, Tensor], parameters: Collection[str] = ()) -> list[str]:
    """Return the names of tensors that hold NaN, or infinity where it is not allowed.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters. Buffers, such as attention masks, may be infinite,
            except for running statistics.

    Example:
        >>> mask = torch.tensor([0.0, -torch.inf])
        >>> nonfinite_weights({"mask": mask, "weight": mask, "bias": mask.log()}, {"weight"})
        ['weight', 'bias']
    """
    return [
        name
        for name, tensor in state.items()
        if not all_finite([tensor])
        and (name in parameters or "running_" in name or bool(tensor.isnan().any()))
    ]


def check_weight_types(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: object
) -> None:
    """Refuse weights of another kind of number, which loading would cast without a word.

    Floating-point numbers of 16, 32 and 64 bits are cast to each other. Integers are quantized
    weights, complex numbers would lose a part, and numbers of 8 bits need their scale.

    Example:
        >>> check_weight_types({"w": torch.ones(3)}, {"w": torch.ones(3, dtype=torch.int8)}, "a")
        Traceback (most recent call last):
        ValueError: a holds w as int8, but the model has float32 there: quantized weights ...
    """
    for name, tensor in weights.items():
        own = expected.get(name)
        if own is None or _kind(own) == _kind(tensor):
            continue
        types = [str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, own.dtype)]
        raise ValueError(
            f"{source} holds {name} as {types[0]}, but the model has {types[1]} there: quantized "
            "weights need their scales; convert them to floating-point numbers first"
        )


def _kind(tensor: Tensor) -> str:
    """Return `float` for numbers that may be cast to each other, else the kind of number."""
    if tensor.is_floating_point():
        return "float" if tensor.element_size() > 1 else str(tensor.dtype)
    if tensor.is_complex():
        return "complex"
    return "bool" if tensor.dtype == torch.bool else "integer"


def check_weights_before_saving(
    state: Mapping[str, Tensor],
    parameters: Collection[str],
    *,
    agree: Callable[[list[str]], list[str]] = list,
) -> None:
    """Refuse to save weights that are not finite; for state and parameters see `nonfinite_weights`.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters.
        agree: Takes the names that are not finite to those of the process that has all weights.

    Raises:
        FloatingPointError: If a tensor holds NaN, or a parameter infinity.

    Example:
        >>> check_weights_before_saving({"mask": torch.tensor([-torch.inf])}, {})
    """
    if names := agree(nonfinite_weights(state, parameters)):
        raise FloatingPointError(
            f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} not finite, so nothing "
            "is saved, and earlier checkpoints are kept. Lower the learning rate, or clip "
            "gradients (--trainer.gradient_clip_val)"
        )
