"""A model by what people call it: of a library, from a directory, or from a file of ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from visattn.models.backbones.huggingface import transformers_model
from visattn.models.backbones.pretrained import (
    NamedModel,
    close_matches,
    timm_model,
    torchvision_model,
)
from visattn.models.backbones.user_code import names_user_code, user_model
from visattn.pipelines.save_load import load

__all__ = ["NamedModel", "named_model"]

_LIBRARIES = {"timm": timm_model, "torchvision": torchvision_model}
_FORMS = (
    "timm:NAME, torchvision:NAME, hf:DIRECTORY, your own code as FILE.py:NAME or "
    "package.module:NAME, or a .safetensors file of visattn's"
)


def named_model(
    spec: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> NamedModel:
    """Return a model by name, ready to look: in evaluation mode, on the CPU.

    Only local files are read, unless `pretrained` asks for a download, and nothing in them is run
    but the code that `FILE.py:NAME` or `package.module:NAME` names.

    Args:
        spec: `timm:NAME`, `torchvision:NAME`, `hf:DIRECTORY`, `FILE.py:NAME` or
            `package.module:NAME` with a class or function that builds a model, or a file as
            `visattn.save` writes it.
        weights: A file or folder with the weights of a model of timm, torchvision or your own, as
            `read_state_dict` takes it. What timm and torchvision build with 1000 classes is taken
            to know those of ImageNet.
        pretrained: Whether to take the library's own weights, which are downloaded.
        arguments: For the library's constructor; for timm also `mean` and `std`, if the weights
            were made for other colors.

    Raises:
        FileNotFoundError: If there is no such file or directory.
        ImportError: If the library is not installed.
        ValueError: If the name or an argument is unknown, if weights are asked for twice or do not
            fit.

    Example:
        >>> named_model("timm:resnet81")
        Traceback (most recent call last):
        ValueError: timm knows no model 'resnet81'; did you mean resnet18...
    """
    kind, colon, name = spec.partition(":")
    if colon and kind in _LIBRARIES:
        build = _LIBRARIES[kind]
        return build(name, weights=weights, pretrained=pretrained, arguments=arguments)
    if names_user_code(spec):
        if pretrained:
            raise ValueError(f"pretrained belongs to timm:NAME and torchvision:NAME, not to {spec}")
        return user_model(spec, weights=weights, arguments=arguments)
    if weights or pretrained or arguments:
        raise ValueError(
            "weights and arguments belong to timm:NAME, torchvision:NAME and your own code, "
            f"pretrained to the first two; {spec} brings its own"
        )
    if colon and kind == "hf":
        return transformers_model(Path(name).expanduser())
    if spec.endswith(".safetensors"):
        model = load(spec)
        classes = getattr(model, "classes", ())
        return NamedModel(model, None, tuple(map(str, classes)), spec)
    raise ValueError(_unknown(spec, kind if colon else ""))


def _unknown(spec: str, kind: str) -> str:
    if kind:
        hint = close_matches(kind, [*_LIBRARIES, "hf"])
    elif Path(spec).suffix in (".pth", ".pt", ".ckpt", ".bin"):
        hint = (
            "; weights do not say how their model is built: name it too, as in --model timm:NAME "
            f"--weights {spec}"
        )
    elif Path(spec).is_dir():
        hint = f"; did you mean hf:{spec}, or at the command line run:{spec}?"
    else:
        hint = f"; did you mean timm:{spec} or torchvision:{spec}?" if spec.isidentifier() else ""
    return f"a model is named {_FORMS}, got {spec!r}{hint}"
