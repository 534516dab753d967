"""Models of Hugging Face's transformers, from a directory."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torchvision.transforms import InterpolationMode, v2

from visattn.models.backbones.pretrained import NamedModel, unique_names
from visattn.models.serialization.state_dicts import read_state_dict
from visattn.models.serialization.weight_files import check_finite
from visattn.recording.vision_tower import vision_tower

_MODES = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
}
_BY_SHORTER = ("Bit", "CLIP", "ConvNext")  # whose size, if it is one number, is the shorter side
_DEFAULTED = (
    "size", "crop_size", "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad",
    "image_mean", "image_std", "resample", "rescale_factor", "crop_pct",
)  # fmt: skip
_UNUSUAL = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order")


def transformers_model(directory: Path) -> NamedModel:
    """Return the model that a directory holds, with the preprocessing that lies beside it.

    It is of the class that config.json names; of a model that also takes text the vision tower is
    taken. Nothing is downloaded, and no code of the directory is run. A model without class
    scores, such as a backbone, can be recorded, though not asked about a class.

    Args:
        directory: As `save_pretrained` writes it.

    Raises:
        FileNotFoundError: If there is no such directory, or no config.json in it.
        ImportError: If transformers is not installed.
        ValueError: If the model is of no class that transformers knows, weights are missing, are
            NaN or would have to be run, or the model has no part that takes images.
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
    model = _loaded(_class(library, config, directory), directory)
    notes = ["the code beside the model is not run"] if config.get("auto_map") else []
    if tower := vision_tower(model):
        notes.append(
            f"of {type(model).__name__} the vision tower is taken: {tower[0]}, a "
            f"{type(tower[1]).__name__}"
        )
        model = tower[1]
    elif getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise ValueError(f"{directory} holds a {type(model).__name__}, which takes no images")
    check_finite(model, directory)
    transform = _transform(library, directory, model, notes)
    return NamedModel(model.eval(), transform, _classes(model), str(directory), tuple(notes))


def _class(library: Any, config: Mapping[str, Any], directory: Path) -> Any:
    """Return the class of transformers that a configuration names."""
    named = config.get("architectures") or ()
    if not named:
        return library.AutoModel
    name = str(named[0])
    kind = getattr(library, name, None) if name.isidentifier() else None
    if isinstance(kind, type) and issubclass(kind, library.PreTrainedModel):
        return kind
    own = "; its own code is not run" if config.get("auto_map") else ""
    raise ValueError(
        f"{directory} holds no model that can be built: transformers {library.__version__} has no "
        f"class {name}{own}"
    )


def _loaded(kind: Any, directory: Path) -> nn.Module:
    """Return a model with the weights beside its configuration, all of them."""
    safe = any(directory.glob("*.safetensors"))
    if not safe:
        read_state_dict(directory)  # refuses by name what would have to be run
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, loading = kind.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=safe,
            weights_only=True,
            output_loading_info=True,
        )
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{directory} holds no model that can be built: {error}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    if missing := sorted(key for key in loading["missing_keys"] if "pooler" not in key):
        raise ValueError(
            f"{directory} lacks {len(missing)} weights of {type(model).__name__}, "
            f"{', '.join(missing[:3])} first"
        )
    return model


def _classes(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the classes of a classifier that has some."""
    labels = cast("Any", model.config).id2label or {}
    names = [str(labels[index]) for index in sorted(labels)]
    named = all(not name.startswith("LABEL_") for name in names)
    return unique_names(names) if named and "ForImageClass" in type(model).__name__ else ()


def _transform(
    library: Any, directory: Path, model: nn.Module, notes: list[str]
) -> v2.Compose | None:
    """Return the preprocessing that lies beside a model; None, and a note, for that of its kind."""
    config = _processor_config(library, directory)
    assumed = (
        "images are resized and cropped to the size in config.json, with the usual mean and "
        f"std of {cast('Any', model.config).model_type}"
    )
    if config is None:
        notes.append(f"{directory} holds no preprocessor_config.json: {assumed}")
        return None
    try:
        return preprocessing(config)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        notes.append(f"the preprocessing beside the model is not followed ({reason}): {assumed}")
        return None


def _processor_config(library: Any, directory: Path) -> dict[str, Any] | None:
    """Return the configuration of the image processor, with the defaults of its class."""
    config: Any = None
    if (file := directory / "preprocessor_config.json").is_file():
        config = _read(file)
    elif (file := directory / "processor_config.json").is_file():
        config = _read(file).get("image_processor")
    if not isinstance(config, dict):
        return None
    name = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    kind = getattr(library, str(name), None)
    defaults = {key: getattr(kind, key, None) for key in _DEFAULTED} if kind else {}
    return {key: value for key, value in defaults.items() if value is not None} | config


def preprocessing(config: Mapping[str, Any]) -> v2.Compose:
    """Return what an image processor of transformers does, as steps of torchvision.

    They are those of its fast processors, which work on tensors.

    Args:
        config: What its preprocessor_config.json says.

    Raises:
        ValueError: If it asks for more than resizing, a crop in the middle and normal colors.

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
