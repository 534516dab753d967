"""A model built by somebody's own code: `FILE.py:NAME` or `package.module:NAME`.

That code is run. Its errors are reported with its own file and line.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from visattn.models.backbones.pretrained import NamedModel
from visattn.models.backbones.timm_weights import load_weights
from visattn.recording.user_errors import raised_at

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RESERVED = ("timm", "torchvision", "hf", "run")


def names_user_code(spec: str) -> bool:
    """Whether a name of a model is that of somebody's own code.

    Args:
        spec: As somebody wrote it.

    Example:
        >>> [names_user_code(spec) for spec in ("net.py:Net", "torch.nn:Identity", "timm:resnet18")]
        [True, True, False]
    """
    where, colon, name = spec.rpartition(":")
    if not colon or where in _RESERVED:
        return False
    if where.endswith(".py"):
        return True
    if not _MODULE.fullmatch(where) or not all(map(str.isidentifier, name.split("."))):
        return False
    with _importable(""):  # a word that no module is called is a slip of the pen
        return importlib.util.find_spec(where.split(".")[0]) is not None


def code_file(spec: str) -> Path | None:
    """Return the file of the code that a model is named by; None if it is named by no code.

    Args:
        spec: As somebody wrote it.

    Example:
        >>> code_file("torch.nn:Identity").parts[-3:], code_file("timm:resnet18")
        (('torch', 'nn', '__init__.py'), None)
    """
    if not names_user_code(spec):
        return None
    where = spec.rpartition(":")[0]
    if _is_file(where):
        return Path(where).expanduser()
    with _importable(""):
        found = importlib.util.find_spec(where)
    return Path(found.origin) if found and found.origin and found.has_location else None


def user_model(
    spec: str, *, weights: Path | None = None, arguments: Mapping[str, Any] | None = None
) -> NamedModel:
    """Return the model that somebody's own code builds; the code is run.

    Args:
        spec: `FILE.py:NAME` or `package.module:NAME`, with the name of a class of `nn.Module`, of
            a function that returns a model, or of a model.
        weights: A file or folder to fill it with, as `read_state_dict` takes it.
        arguments: Of the class or the function.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such module or name, the code raises an error, what it builds is
            no model, or the weights do not fit.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> _ = file.write_text("from torch.nn import Conv2d; make = lambda n=2: Conv2d(3, n, 1)")
        >>> user_model(f"{file}:make", arguments={"n": 5}).model
        Conv2d(3, 5, kernel_size=(1, 1), stride=(1, 1))
    """
    where, _, name = spec.rpartition(":")
    with _importable(str(Path(where).expanduser().resolve().parent) if _is_file(where) else ""):
        made = _built(_named(_imported(where), where, name), spec, dict(arguments or {}))
    if not isinstance(made, nn.Module):
        raise ValueError(f"{spec} must build an nn.Module, got {type(made).__name__}")  # noqa: TRY004 (of the user's code)
    notes = load_weights(made, weights) if weights else ()
    origin = str(weights) if weights else spec
    return NamedModel(made.eval(), None, _classes(made), origin, notes)


def _is_file(where: str) -> bool:
    return where.endswith(".py")


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Let modules be found in a folder, as beside a script; "" is the working folder."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _imported(where: str) -> ModuleType:
    """Return the module that a file or a dotted name means."""
    if not _is_file(where):
        with _reported(where):
            return importlib.import_module(where)
    file = Path(where).expanduser().resolve()
    found = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or found is None or found.loader is None:
        raise FileNotFoundError(f"{where} does not exist; a model's own code is named FILE.py:NAME")
    module = importlib.util.module_from_spec(found)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # its classes, such as dataclasses, look for their module
    try:
        with _reported(where):
            found.loader.exec_module(module)
    finally:
        if before is not None:
            sys.modules[file.stem] = before
    return module


def _named(module: ModuleType, where: str, name: str) -> Any:
    """Return what a name in a module means; a dot leads into a class or a submodule."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{where} has no {name!r}{_alike(part, found)}")
        found = getattr(found, part)
    return found


def _built(made: Any, spec: str, arguments: dict[str, Any]) -> Any:
    """Return a model, called if it is a class or a function."""
    if isinstance(made, nn.Module):
        if arguments:
            raise ValueError(f"{spec} is a model already, so it takes no arguments")
        return made
    if not callable(made):
        raise ValueError(  # noqa: TRY004 (of the user's code)
            f"{spec} must be a class, a function or a model, got {type(made).__name__}"
        )
    with _reported(spec):
        return made(**arguments)


@contextmanager
def _reported(spec: str) -> Iterator[None]:
    """Turn any error of somebody's code into one line that names its file and line.

    Raises:
        ValueError: With the line.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, as of a script without a main guard
        told = str(error) or "no message"
        place = raised_at(error)
        raise ValueError(
            f"{spec} failed{f' in {place}' if place else ''}: {type(error).__name__}: {told}"
        ) from error


def _alike(name: str, held: Any) -> str:
    names = [known for known in vars(held) if not known.startswith("_")] if held else []
    close = get_close_matches(name, names, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def _classes(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the classes, if the model keeps them as timm's and ours do."""
    names = getattr(model, "classes", None) or ()
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if known and len(set(names)) == len(names) else ()
