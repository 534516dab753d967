"""Models of Hugging Face's transformers, from a directory."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import InterpolationMode, v2

from visattn.models.library_models import NamedModel, unique_names

_MODES = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
}
_BY_SHORTER = ("Bit", "CLIP", "ConvNext")  # whose size, if it is one number, is the shorter side
_UNUSUAL = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order")


def transformers_model(directory: Path) -> NamedModel:
    """Return the model that a directory holds, with the preprocessing that lies beside it.

    Nothing is downloaded, and no code of the directory is run. A model without scores of classes,
    such as a backbone, can be recorded, though not asked about a class.

    Args:
        directory: As `save_pretrained` writes it.

    Raises:
        FileNotFoundError: If there is no such directory, or no config.json in it.
        ImportError: If transformers is not installed.
        ValueError: If the model is of no kind that transformers knows, weights are missing, or the
            preprocessing has steps that are not known here.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} is no directory with a config.json; save_pretrained writes one"
        )
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "models of Hugging Face need transformers: pip install 'visattn[hf]'"
        ) from error
    config = _read(directory / "config.json")
    scored = any(
        "ForImageClassification" in str(kind) for kind in config.get("architectures") or ()
    )
    kind = library.AutoModelForImageClassification if scored else library.AutoModel
    try:
        model, told = kind.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,  # weights kept as a pickle are not opened
            weights_only=True,
            output_loading_info=True,
        )
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{directory} holds no model that can be built: {error}") from error
    if missing := sorted(key for key in told["missing_keys"] if "pooler" not in key):
        raise ValueError(
            f"{directory} lacks {len(missing)} weights, {', '.join(missing[:3])} first"
        )
    names = [str(model.config.id2label[index]) for index in sorted(model.config.id2label)]
    told_names = scored and not all(name.startswith("LABEL_") for name in names)
    file = directory / "preprocessor_config.json"
    transform = preprocessing(_read(file)) if file.is_file() else None
    classes = unique_names(names) if told_names else ()
    return NamedModel(model.eval(), transform, classes, str(directory))


def preprocessing(config: Mapping[str, Any]) -> v2.Compose:
    """Return what an image processor of transformers does, as steps of torchvision.

    They are those of its fast processors, which work on tensors.

    Args:
        config: What its preprocessor_config.json says.

    Raises:
        ValueError: If it asks for more than resizing, a crop in the middle and normal colours.

    Example:
        >>> steps = preprocessing({"size": {"shortest_edge": 8}, "crop_size": 5,
        ...     "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
        >>> steps(torch.zeros(3, 20, 30, dtype=torch.uint8)).shape
        torch.Size([3, 5, 5])
    """
    if unusual := [name for name in _UNUSUAL if config.get(name)]:
        raise ValueError(
            f"the preprocessing asks for {', '.join(unusual)}, which is not known here; hand over "
            "a transform of torchvision's steps"
        )
    steps: list[Any] = [v2.PILToTensor()]
    if config.get("do_resize", True):
        steps += _resizing(config)
    if config.get("do_center_crop", False):
        steps.append(v2.CenterCrop(_sides(config["crop_size"])))
    if config.get("do_rescale", True):
        factor = float(config.get("rescale_factor", 1 / 255))
        if abs(factor * 255 - 1) > 1e-3:
            raise ValueError(f"rescale_factor must be 1/255, got {factor}; hand over a transform")
        steps.append(v2.ToDtype(torch.float32, scale=True))
    else:
        steps.append(v2.ToDtype(torch.float32))
    if config.get("do_normalize", True):
        steps.append(v2.Normalize(list(config["image_mean"]), list(config["image_std"])))
    return v2.Compose(steps)


def _resizing(config: Mapping[str, Any]) -> list[Any]:
    mode = _MODES.get(config.get("resample", 2))
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    size = config["size"]
    if mode is None or (isinstance(size, Mapping) and "longest_edge" in size):
        raise ValueError(
            f"resizing to {size} by filter {config.get('resample')} is not known here; hand over a "
            "transform of torchvision's steps"
        )
    if isinstance(size, int) and kind.startswith(_BY_SHORTER):
        size = {"shortest_edge": size}
    if not (isinstance(size, Mapping) and "shortest_edge" in size):
        return [v2.Resize(_sides(size), interpolation=mode)]
    side = int(size["shortest_edge"])
    if not kind.startswith("ConvNext"):
        return [v2.Resize(side, interpolation=mode)]
    if side >= 384:  # large ones are shown whole and out of shape
        return [v2.Resize((side, side), interpolation=mode)]
    longer = int(side / (config.get("crop_pct") or 224 / 256))
    return [v2.Resize(longer, interpolation=mode), v2.CenterCrop(side)]


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return int(size), int(size)


def _read(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds.

    Raises:
        ValueError: If it holds no mapping.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"{file} must hold a mapping, got {type(told).__name__}")  # noqa: TRY004 (a file's fault)
    return told
