"""Models of other libraries and user code by name: `timm:NAME`, `FILE.py:NAME`, ..."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from visattn.io.messages import did_you_mean
from visattn.models.backbones.timm_classifier import (
    check_single_source,
    create_timm_backbone,
    read_timm_weights,
)
from visattn.models.loaded import Loaded, mark, unique_names
from visattn.models.weights import Weights, classes_of, load_weights, read_weights

_LIBRARIES = ("timm", "torchvision", "hf")


def load_named(
    spec: str, weights: Path | None, *, pretrained: bool, model_kwargs: dict[str, Any]
) -> nn.Module | None:
    """Return a model of timm, torchvision or user code; None for other names.

    The arguments are those of `visattn.load`.
    """
    check_single_source(weights, pretrained=pretrained)
    kind, _, name = spec.partition(":")
    origin = "pretrained" if pretrained else "random"
    if kind == "timm":

        def build(num_classes: int | None = None, **more: Any) -> nn.Module:
            # None: that of the pretrained model
            return create_timm_backbone(
                name, {**more, "num_classes": num_classes}, pretrained=pretrained
            )

        read = partial(read_timm_weights, name=name, arguments=model_kwargs)
        model, loaded = _with_weights(build, weights, model_kwargs, read)
        names = loaded.class_names or _imagenet_names(model)
        return mark(model, Loaded(str(weights or origin), names, notes=loaded.notes))
    if kind == "torchvision":
        return _torchvision_model(name, weights, model_kwargs, pretrained=pretrained)
    if not is_user_code(spec) or pretrained:
        return None
    with user_object(spec) as named:
        code = (lambda: named) if isinstance(named, nn.Module) else named
        model, loaded = _with_weights(code, weights, model_kwargs)
    own = getattr(model, "class_names", None) or getattr(model, "classes", None)
    own = unique_names([*map(str, own)]) if isinstance(own, list | tuple) else ()
    names = loaded.class_names or own
    return mark(model, Loaded(str(weights or spec), names, notes=loaded.notes))


def _with_weights(
    build: Callable[..., nn.Module],
    file: Path | None,
    arguments: Mapping[str, Any],
    read: Callable[..., Weights] = lambda own, file: read_weights(file, own),
) -> tuple[nn.Module, Weights]:
    """Build a model with weights; by default it has as many classes as the weights."""
    takes = inspect.signature(build).parameters.get("num_classes")
    asked = takes is None or "num_classes" in arguments or file is None
    # Any number of classes, for the comparison of the weights with the model.
    first = {"num_classes": 2} if takes and not asked and takes.default is takes.empty else {}
    model = build(**{**first, **arguments})
    if not isinstance(model, nn.Module):
        raise ValueError(f"the code must build an nn.Module, got {type(model).__name__}")  # noqa: TRY004 (of the user's code)
    if file is None:
        return model, Weights({})
    weights = read(model.state_dict(), file=file)
    if not asked and (count := classes_of(model.state_dict(), weights.tensors)):
        model = build(**{**arguments, "num_classes": count})
        weights = read(model.state_dict(), file=file)
    load_weights(model, weights, file)
    return model, weights


def _torchvision_model(
    name: str, weights: Path | None, arguments: dict[str, Any], *, pretrained: bool
) -> nn.Module:
    """Return a torchvision model, with the preprocessing and classes of its default weights."""
    from torchvision import models as zoo  # slow to import

    default: Any = zoo.get_model_weights(name).DEFAULT  # type: ignore[attr-defined]
    options = {"weights": default if pretrained else None}
    if name in (*zoo.list_models(zoo.segmentation), *zoo.list_models(zoo.detection)):
        options |= {} if pretrained else {"weights_backbone": None}  # without a download
    classes = unique_names(default.meta["categories"])
    built: list[int] = []

    def build(num_classes: int = len(classes), **more: Any) -> nn.Module:
        built.append(num_classes)
        return zoo.get_model(name, num_classes=num_classes, **options, **more)

    model, loaded = _with_weights(build, weights, arguments)
    transform = None if "image_size" in arguments else default.transforms()
    names = loaded.class_names or (classes if built[-1] == len(classes) else ())
    source = str(weights or ("pretrained" if pretrained else "random"))
    return mark(model, Loaded(source, names, transform, notes=loaded.notes))


def _imagenet_names(model: nn.Module) -> tuple[str, ...]:
    """Return the class names of the ImageNet variant with this number of classes."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset  # slow to import
    from torchvision.models import ResNet18_Weights

    subset = infer_imagenet_subset({"num_classes": getattr(model, "num_classes", 0)})
    if subset == "imagenet-1k":  # torchvision's names are shorter
        return unique_names(ResNet18_Weights.DEFAULT.meta["categories"])
    described = ImageNetInfo(subset).label_descriptions() if subset else []
    return unique_names([str(name).split(",")[0] for name in described])


def is_user_code(spec: str) -> bool:
    """Return whether a name is that of user code, `FILE.py:NAME` or `package.module:NAME`.

    Example:
        >>> [is_user_code(spec) for spec in ("net.py:Net", "torch.nn:Identity", "timm:resnet18")]
        [True, True, False]
    """
    where, _, name = spec.rpartition(":")
    if where in ("", *_LIBRARIES) or where.endswith(".py"):
        return where.endswith(".py")
    if not all(map(str.isidentifier, [*where.split("."), *name.split(".")])):
        return False
    with _importable(""):  # no such module: probably a typo
        return importlib.util.find_spec(where.split(".")[0]) is not None


def user_code_file(spec: str) -> Path | None:
    """Return the source file of user code; None for another name."""
    if not is_user_code(spec):
        return None
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where).expanduser()
    with _importable(""):
        module = importlib.util.find_spec(where)
    return Path(module.origin) if module and module.origin else None


@contextmanager
def user_object(spec: str) -> Iterator[Any]:
    """Import an object from user code, which may import modules in its folder.

    Raises:
        ValueError: If there is no such name.
    """
    where, _, name = spec.rpartition(":")
    file = Path(where).expanduser().resolve()
    with _importable(str(file.parent) if where.endswith(".py") else ""):
        value: Any = _import_file(file) if where.endswith(".py") else importlib.import_module(where)
        for attribute in name.split("."):
            if not hasattr(value, attribute):
                raise ValueError(f"{where} has no {name!r}; {did_you_mean(attribute, dir(value))}")
            value = getattr(value, attribute)
        yield value


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Add a folder to the import path, as for a script; "" is the working directory."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import_file(file: Path) -> ModuleType:
    spec: Any = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(file.stem, module)
    sys.modules[file.stem] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules[file.stem] = before
    return module
