"""Loading of models from user code: `FILE.py:NAME` or `package.module:NAME`.

The code is executed. Its errors are reported with their file and line.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from visattn.io.messages import did_you_mean, user_code_location
from visattn.models.backbones.pretrained import LoadedModel
from visattn.models.backbones.timm_classifier import classes_of_weights, load_weights
from visattn.recording.model_config import ClassNames

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RESERVED = ("timm", "torchvision", "hf", "open_clip", "run")


def is_user_code(spec: str) -> bool:
    """Return whether a model spec names user code.

    Example:
        >>> [is_user_code(spec) for spec in ("net.py:Net", "torch.nn:Identity", "timm:resnet18")]
        [True, True, False]
    """
    where, colon, name = spec.rpartition(":")
    if not colon or where in _RESERVED:
        return False
    if where.endswith(".py"):
        return True
    if not _MODULE.fullmatch(where) or not all(map(str.isidentifier, name.split("."))):
        return False
    with _importable(""):  # a name that no module has is probably a typing error
        return importlib.util.find_spec(where.split(".")[0]) is not None


def user_code_file(spec: str) -> Path | None:
    """Return the source file of a model spec; None if the spec does not name user code.

    Example:
        >>> user_code_file("torch.nn:Identity").parts[-3:], user_code_file("timm:resnet18")
        (('torch', 'nn', '__init__.py'), None)
    """
    if not is_user_code(spec):
        return None
    where = spec.rpartition(":")[0]
    if _is_file(where):
        return Path(where).expanduser()
    with _importable(""):
        module = importlib.util.find_spec(where)
    return Path(module.origin) if module and module.origin and module.has_location else None


def load_user_model(
    spec: str,
    *,
    weights: Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    class_names: ClassNames | None = None,
) -> LoadedModel:
    """Load a model from user code; the code is executed.

    Args:
        spec: `FILE.py:NAME` or `package.module:NAME`, where NAME is a subclass of `nn.Module`, a
            function that returns a model, or a model.
        weights: As in `load_model`.
        class_names: As in `load_model`.
        model_kwargs: Arguments of the class or function. An argument `num_classes` that is not
            among them is the number of classes of the weights; of a builder that requires it, also
            that of the class names.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the module or name does not exist, the code raises an error, the result is
            not an `nn.Module`, or the weights do not fit.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> _ = file.write_text("from torch.nn import Conv2d; make = lambda n=2: Conv2d(3, n, 1)")
        >>> load_user_model(f"{file}:make", model_kwargs={"n": 5}).model
        Conv2d(3, 5, kernel_size=(1, 1), stride=(1, 1))
    """
    where, _, name = spec.rpartition(":")
    with _importable(str(Path(where).expanduser().resolve().parent) if _is_file(where) else ""):
        factory = _lookup(_import(where), where, name)
        arguments = dict(model_kwargs or {})
        parameter = None if "num_classes" in arguments else _num_classes_parameter(factory)
        required = parameter is not None and parameter.default is parameter.empty
        if required and (class_names or weights):
            # Before the weights are compared with a model, any number will do.
            arguments["num_classes"] = len(class_names or "ab")
        model = _build(factory, spec, arguments)
        if parameter and weights and (count := classes_of_weights(model, weights)):
            model = _build(factory, spec, {**arguments, "num_classes": count})
    notes = load_weights(model, weights) if weights else ()
    origin = str(weights) if weights else spec
    return LoadedModel(model.eval(), None, _class_names(model), origin, notes)


def load_user_object(spec: str) -> Any:
    """Return an object of user code, or what a class or function of it returns; it is executed.

    Args:
        spec: `FILE.py:NAME` or `package.module:NAME`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it names no user code, the module or name does not exist, or the code raises
            an error.

    Example:
        >>> file = getfixture("tmp_path") / "steps.py"
        >>> _ = file.write_text("def build(): return [1, 2]")
        >>> load_user_object(f"{file}:build")
        [1, 2]
    """
    if not is_user_code(spec):
        raise ValueError(f"user code is named as FILE.py:NAME or package.module:NAME, got {spec!r}")
    where, _, name = spec.rpartition(":")
    with _importable(str(Path(where).expanduser().resolve().parent) if _is_file(where) else ""):
        thing = _lookup(_import(where), where, name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            return thing
        with _user_errors(spec):
            return thing()


def _is_file(where: str) -> bool:
    return where.endswith(".py")


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Add a folder to the import path, as for a script; "" is the working directory."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import(where: str) -> ModuleType:
    """Import a module from a file or by its dotted name."""
    if not _is_file(where):
        with _user_errors(where):
            return importlib.import_module(where)
    file = Path(where).expanduser().resolve()
    module_spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or module_spec is None or module_spec.loader is None:
        raise FileNotFoundError(f"{where} does not exist; user code is named as FILE.py:NAME")
    module = importlib.util.module_from_spec(module_spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # dataclasses look up their module
    try:
        with _user_errors(where):
            module_spec.loader.exec_module(module)
    finally:
        if before is not None:
            sys.modules[file.stem] = before
    return module


def _lookup(module: ModuleType, where: str, name: str) -> Any:
    """Return an object of a module by its dotted name."""
    value: Any = module
    for attribute in name.split("."):
        if not hasattr(value, attribute):
            names = [key for key in dir(value) if not key.startswith("_")]
            raise ValueError(f"{where} has no {name!r}; {did_you_mean(attribute, names)}")
        value = getattr(value, attribute)
    return value


def _num_classes_parameter(factory: Any) -> inspect.Parameter | None:
    """Return the parameter `num_classes` of a class or function; None if it has none."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return None
    try:
        return inspect.signature(factory).parameters.get("num_classes")
    except (TypeError, ValueError):  # of some builtins it is not known
        return None


def _build(factory: Any, spec: str, model_kwargs: dict[str, Any]) -> nn.Module:
    """Call a class or function; return a model as it is."""
    if isinstance(factory, nn.Module):
        if model_kwargs:
            raise ValueError(f"{spec} is already a model, so it takes no arguments")
        return factory
    if not callable(factory):
        raise ValueError(  # noqa: TRY004 (of the user's code)
            f"{spec} must be a class, a function or a model, got {type(factory).__name__}"
        )
    with _user_errors(spec):
        model = factory(**model_kwargs)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{spec} must build an nn.Module, got {type(model).__name__}")  # noqa: TRY004 (of the user's code)
    return model


@contextmanager
def _user_errors(spec: str) -> Iterator[None]:
    """Turn any error of user code into a one-line message with its file and line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, as of a script without a main guard
        message = str(error) or "no message"
        place = user_code_location(error)
        raise ValueError(
            f"{spec} failed{f' in {place}' if place else ''}: {type(error).__name__}: {message}"
        ) from error


def _class_names(model: nn.Module) -> tuple[str, ...]:
    """Return the attribute `class_names` or `classes` of a model, if it holds unique names."""
    names = getattr(model, "class_names", None) or getattr(model, "classes", None) or ()
    valid = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if valid and len(set(names)) == len(names) else ()
