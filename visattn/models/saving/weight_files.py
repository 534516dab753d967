"""Files of weights: local and undamaged; reading one executes no code."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
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


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file.

    Raises:
        ValueError: If the file is damaged or not a safetensors file.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except SafetensorError as error:
        raise ValueError(
            f"{file} is damaged or no safetensors file: {error}. Files of torch.save (.pth, .pt, "
            ".ckpt, .bin) contain weights without a model; build the model and pass the file as "
            "its weights, as in --model timm:NAME --weights FILE"
        ) from error


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


def check_loaded_weights(model: nn.Module, source: object) -> None:
    """Raise an error if a model has nonfinite weights.

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
    header = {"format": FORMAT, "description": json.dumps(description, allow_nan=False)}
    # A single entry: safetensors writes several entries in random order.
    atomic_write(target, save(tensors, metadata={"visattn": json.dumps(header)}))


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description in a file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, was not written by `write_safetensors`, or the path is
            remote.
    """
    source = require_local_file(path, missing=f"no model at {path}; `visattn export` writes one")
    with open_safetensors(source) as file:
        header = _mapping((file.metadata() or {}).get("visattn"))
        described = _mapping(header.get("description"))
        if header.get("format") != FORMAT or not described:
            raise ValueError(
                f"{source} is a safetensors file, but not an exported visattn model (format "
                f"{FORMAT}, written by `visattn export`); load weights of another model with "
                "--model timm:NAME --weights FILE or --model FILE.py:NAME --weights FILE"
            )
        return {name: file.get_tensor(name) for name in file.keys()}, described  # noqa: SIM118


def _mapping(text: Any) -> dict[str, Any]:
    """Return the mapping in a JSON string; an empty one if there is none."""
    try:
        value = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


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
    """Refuse quantized weights, which `load_state_dict` would cast without their scales.

    Example:
        >>> check_weight_types({"w": torch.ones(3)}, {"w": torch.ones(3, dtype=torch.int8)}, "a")
        Traceback (most recent call last):
        ValueError: a holds w as int8, but the model has float32 there: quantized weights ...
    """
    for name, tensor in weights.items():
        own = expected.get(name)
        # Floating-point numbers of 8 bits need scales as integers do.
        plain = tensor.is_floating_point() and tensor.element_size() > 1
        if own is not None and own.is_floating_point() and not plain:
            types = [str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, own.dtype)]
            raise ValueError(
                f"{source} holds {name} as {types[0]}, but the model has {types[1]} there: "
                "quantized weights need their scales; convert them to floating-point numbers first"
            )


def check_weights_before_saving(state: Mapping[str, Tensor], parameters: Collection[str]) -> None:
    """Refuse to save weights that are not finite; for state and parameters see `nonfinite_weights`.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters.

    Raises:
        FloatingPointError: If a tensor holds NaN, or a parameter infinity.

    Example:
        >>> check_weights_before_saving({"mask": torch.tensor([-torch.inf])}, {})
    """
    if names := nonfinite_weights(state, parameters):
        raise FloatingPointError(
            f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} not finite, so nothing "
            "is saved, and earlier checkpoints are kept. Lower the learning rate, or clip "
            "gradients (--trainer.gradient_clip_val)"
        )
