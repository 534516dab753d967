"""Analyses of models on disk, so that a new process does not repeat those of an earlier one.

A file holds one result of one model, as JSON behind a line with its digest, in the cache folder of
the platform; `VISATTN_CACHE` names another folder, or is `off`. The name of the file is a digest of
all that the result depends on:

    modules        names, classes, their attributes (strides, window sizes, ...)
    weights        names, shapes, dtypes, and samples: what is read by zero weights differs
    code           versions of torch, timm, torchvision, transformers and visattn

So a model that differs in any of these has another file. A model is analyzed in each process if its
digest would say too little: with modules of one's own, whose code has no version, with hooks, or
with attributes whose content cannot be read.
"""

import base64
import enum
import functools
import hashlib
import json
import os
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from visattn.io.atomic import atomic_write
from visattn.io.safe_text import parse_json, paused_garbage_collection

VARIABLE = "VISATTN_CACHE"
_MOST_FILES = 2000
_SUFFIX = ".analysis"
_PACKAGES = ("torch", "torchvision", "timm", "transformers", "visattn")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = frozenset(vars(nn.Module())) | {"training"}
_MOST_NUMBERS = 4096  # of a tensor, up to which it is part of a digest as a whole
_MOST_READ = 1 << 16  # of a tensor, up to which every line of it is
_LINE = 16  # numbers, as many as a line of the caches of processors has
_APART = (17, 19, 23)  # lines from one that is read to the next
_MOST_INTEGERS = 1 << 18
_ROOMS = ("attribution", "blocks", "functional", "geometry", "insertion", "models", "recording")
_STATE = threading.local()
T = TypeVar("T")


class _UnreadableError(Exception):
    """A digest of a model would not say all that its output depends on."""


def cache_folder() -> Path | None:
    """Return the folder of analyses; None if `VISATTN_CACHE` is `off`.

    Example:
        >>> getfixture("monkeypatch").setenv("VISATTN_CACHE", "off")
        >>> print(cache_folder())
        None
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0"):
        return None
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:  # of a user without one
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "visattn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "visattn"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else home / ".cache") / "visattn"


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Compute what `once` returns, such as the digest of a model, a single time in the block."""
    known = getattr(_STATE, "known", None)
    if known is None:
        known = _STATE.known = {}
    outermost = model not in known
    known.setdefault(model, {})
    try:
        yield
    finally:
        if outermost:
            del known[model]


def once(compute: Callable[[nn.Module], T], model: nn.Module) -> T:
    """Return what a function tells of the modules of a model, from before if it is `unchanged`.

    Example:
        >>> calls = []
        >>> model = nn.Identity()
        >>> with unchanged(model):
        ...     once(calls.append, model), once(calls.append, model)
        (None, None)
        >>> len(calls)
        1
    """
    known = (getattr(_STATE, "known", None) or {}).get(model)
    if known is None:
        return compute(model)
    if compute not in known:
        known[compute] = compute(model)
    return known[compute]


def from_disk(
    model: nn.Module,
    key: tuple[Any, ...],
    types: Iterable[type],
    compute: Callable[[], T],
    *,
    final: Callable[[T], bool] = lambda _: True,
) -> T:
    """Return a result of an analysis from disk, or compute it and keep it there.

    Files that are broken, or not of this analysis, are replaced; where none can be written, the
    result is computed in each process.

    Args:
        key: What the result depends on beside the model; texts, numbers and tuples of them.
        types: Data classes that it consists of.
        final: Whether a result is kept; an error may be one of this process alone.
    """
    folder = cache_folder()
    digest = None if folder is None else once(model_digest, model)
    if folder is None or digest is None:
        with paused_garbage_collection():
            return compute()
    name = hashlib.sha256(f"{digest} {key!r}".encode()).hexdigest()
    path = folder / f"{name}{_SUFFIX}"
    classes = {cls.__name__: cls for cls in types}
    try:
        header, _, text = path.read_text("utf-8").partition("\n")
        if header == _header(name, text):
            return parse_json(text, 2, revive=functools.partial(_decoded, classes))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with paused_garbage_collection():
        result = compute()
    if not final(result):
        return result
    text = json.dumps(_encoded(result, classes))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, f"{_header(name, text)}\n{text}")
        _remove_oldest(folder)
    except OSError:  # a folder that cannot be written, or a full disk: nothing depends on the file
        pass
    return result


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of a model by name, of an `unchanged` one from before.

    Example:
        >>> [name for name, _ in modules_of(nn.Sequential(nn.Identity()))]
        ['', '0']
    """
    return once(_named_modules, model)


def _named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules())


def _header(name: str, text: str) -> str:
    """Return the first line of a file, by which a broken or renamed one is known."""
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files beyond a number."""
    files = list(folder.glob(f"*{_SUFFIX}"))
    if len(files) > _MOST_FILES:
        files.sort(key=lambda file: file.stat().st_mtime)
        for file in files[: len(files) - _MOST_FILES]:
            file.unlink(missing_ok=True)


# ---------------------------------------------------------------- results as JSON


def _encoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Return a result as JSON: what JSON has no form for is a mapping with its type."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):  # token indices
        numbers = value.cpu().to(torch.int32).contiguous().numpy().tobytes()
        packed = base64.b85encode(zlib.compress(numbers)).decode()
        return {"type": "tensor", "shape": list(value.shape), "data": packed}
    if isinstance(value, (list, tuple, set)):
        items = [_encoded(item, classes) for item in cast("Iterable[Any]", value)]
        return {"type": type(value).__name__, "items": items}
    if isinstance(value, (dict, Counter)):
        pairs = cast("Mapping[Any, Any]", value).items()
        items = [[_encoded(name, classes), _encoded(item, classes)] for name, item in pairs]
        return {"type": type(value).__name__, "items": items}
    name = type(value).__name__
    if classes.get(name) is not type(value) or not is_dataclass(value):
        raise TypeError(f"{name} must be one of {', '.join(classes)} to be kept")
    items = [_encoded(getattr(value, name), classes) for name in _field_names(type(value))]
    return {"type": name, "items": items}


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "dict": dict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}


def _decoded(classes: Mapping[str, type], value: dict[str, Any]) -> Any:
    """Return what a mapping stands for, whose items the parser has decoded before it."""
    name = value["type"]
    if name == "tensor":
        numbers = bytearray(zlib.decompress(base64.b85decode(value["data"])))
        return torch.frombuffer(numbers, dtype=torch.int32).view(value["shape"]).long()
    if name in _CONTAINERS:
        return _CONTAINERS[name](value["items"])
    cls = classes[name]
    return cls(**dict(zip(_field_names(cls), value["items"], strict=True)))


# ---------------------------------------------------------------- digests of models


def model_digest(model: nn.Module) -> str | None:
    """Return a digest of all that the analysis of a model depends on; None if it is not known.

    Example:
        >>> def digest(stride: int) -> str | None:
        ...     _ = torch.manual_seed(0)
        ...     return model_digest(nn.Sequential(nn.Conv2d(3, 2, 3, stride), nn.ReLU()))
        >>> digest(1) == digest(1), digest(1) == digest(2)
        (True, False)
        >>> hooked = nn.Identity()
        >>> _ = hooked.register_forward_hook(lambda *_: None)
        >>> print(model_digest(hooked))
        None
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    try:
        return _digest(model, tensors)
    except (_UnreadableError, RuntimeError, TypeError, NotImplementedError):  # of exotic tensors
        return None


def _digest(model: nn.Module, tensors: Mapping[str, Tensor]) -> str:
    texts = [_code_version()]
    names = {cls: _class_name(cls) for cls in {type(module) for module in model.modules()}}
    sites = {module: name for name, module in model.named_modules()}
    for module, name in sites.items():
        attributes = vars(module)
        if any(attributes.get(hooks) for hooks in _HOOKS):
            raise _UnreadableError
        texts.append(f"{name} {names[type(module)]}")
        own = ((key, value) for key, value in attributes.items() if key not in _OWN)
        texts += [f"{key}={_described(value, sites)}" for key, value in own]
    texts += [
        f"{name} {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.device.type}"
        for name, tensor in tensors.items()
    ]
    content = hashlib.sha256("\n".join(texts).encode())
    with torch.no_grad():
        for part in _weight_samples([tensor.detach() for tensor in tensors.values()]):
            content.update(part)
    return content.hexdigest()


def _weight_samples(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield what tells weights from others: small ones and integers whole, samples of others."""
    if any(tensor.is_meta for tensor in tensors):
        raise _UnreadableError
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if not tensor.is_floating_point():
            if tensor.numel() > _MOST_INTEGERS or tensor.is_complex():
                raise _UnreadableError
            yield tensor.cpu().contiguous().numpy().tobytes()
        elif tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for group in groups.values():  # joined, since a copy from a GPU takes long
        joined = torch.cat([part for tensor in group for part in _samples(tensor)])
        yield joined.cpu().view(torch.uint8).numpy().tobytes()


def _samples(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a small tensor, or weighted sums of lines of a larger one, of all or of each 17th.

    To read all weights would take a tenth of a forward pass. Each 17th line meets each column of a
    matrix in some row, since 17 does not divide the length of its rows (else 19 or 23 are taken);
    and no change of 368 neighbors goes unseen.
    """
    if not tensor.is_contiguous():  # in the order in which its numbers lie in memory
        tensor = tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))
    flat = tensor.reshape(-1)
    if len(flat) <= _MOST_NUMBERS:
        yield flat
        return
    apart = next((each for each in _APART if len(flat) % each), 1)
    step = _LINE if len(flat) <= _MOST_READ else _LINE * apart
    end = len(flat) // step * step
    lines = flat[:end].view(-1, step)[:, :_LINE]
    wide = torch.promote_types(flat.dtype, torch.float32)
    yield (lines.to(wide) @ _weights_of_a_line(wide, flat.device)).to(wide)
    yield flat[end:].to(wide)


def _weights_of_a_line(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return weights by which sums see where in a line a number stands, and its sign."""
    return torch.arange(1, _LINE + 1, dtype=dtype, device=device).sqrt()


@functools.cache
def _code_version() -> str:
    """Return the versions of the code that a model and its analysis consist of."""
    from visattn import __version__

    versions = [f"visattn {__version__}", sys.version]
    for name in _PACKAGES[:-1]:
        module = sys.modules.get(name)
        versions.append(f"{name} {getattr(module, '__version__', '')}")
    # A working copy changes without its version.
    for room in _ROOMS:
        for folder, _, files in os.walk(Path(__file__).parents[1] / room):
            for file in sorted(files):
                stat = os.stat(os.path.join(folder, file))  # noqa: PTH116, PTH118 - paths are slow
                versions.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(versions)


def _folders() -> tuple[str, ...]:
    """Return the folders of the packages whose versions are known."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
    return tuple(file.removesuffix("__init__.py") for file in files if file)


def _class_name(cls: type) -> str:
    """Return the name of a class of a library; its version says what it computes.

    Raises:
        _UnreadableError: If it, or one of its methods, is from elsewhere.
    """
    if cls.__module__.partition(".")[0] not in _PACKAGES:
        raise _UnreadableError
    folders = _folders()
    for base in cls.__mro__:
        if base is nn.Module:
            break
        for value in vars(base).values():
            if isinstance(value, FunctionType):
                _check_origin(value, folders)
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_origin(function: FunctionType, folders: tuple[str, ...]) -> None:
    """Refuse a function that was put in the place of one of a library."""
    name = function.__code__.co_filename
    if not name.startswith((*folders, "<")):  # methods of data classes have no file
        raise _UnreadableError


def _function_name(function: FunctionType) -> str:
    _check_origin(function, _folders())
    closed = [_described(cell.cell_contents, {}) for cell in function.__closure__ or ()]
    return f"{function.__module__}.{function.__qualname__} {closed}"


def _described(value: Any, sites: Mapping[nn.Module, str]) -> str:
    """Return a text that tells a value of an attribute from others; a module by its site.

    Raises:
        _UnreadableError: If its content cannot be read.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, range, slice)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return _class_name(value) if value.__module__ != "builtins" else value.__name__
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, FunctionType):
        return _function_name(value)
    if isinstance(value, BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, MethodType):
        return f"{_described(value.__func__, sites)} of {type(value.__self__).__qualname__}"
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial {[_described(part, sites) for part in parts]}"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return repr([(_described(key, sites), _described(item, sites)) for key, item in pairs])
    if isinstance(value, (list, tuple)):
        return repr([_described(item, sites) for item in cast("Iterable[Any]", value)])
    if isinstance(value, (set, frozenset)):
        return repr(sorted(_described(item, sites) for item in cast("Iterable[Any]", value)))
    if isinstance(value, nn.Module) and value in sites:
        return f"module {sites[value]}"
    if not isinstance(value, nn.Module) and hasattr(value, "__dict__"):
        return f"{_class_name(type(value))} {_described(vars(value), {})}"
    raise _UnreadableError


def _numbers(tensor: Tensor) -> str:
    if tensor.numel() > _MOST_NUMBERS or tensor.is_meta:
        raise _UnreadableError
    return f"{tensor.dtype} {tensor.tolist()}"
