"""Loading of Hugging Face transformers models from a directory."""

import importlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torchvision.transforms import InterpolationMode, v2

from visattn.io.safe_text import short_repr
from visattn.models.backbones.loaded_model import LoadedModel
from visattn.models.backbones.pretrained import unique_names
from visattn.models.serialization.state_dicts import read_state_dict
from visattn.models.serialization.weight_files import check_loaded_weights
from visattn.recording.model_config import vision_tower

_MODES = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
}
_SHORTEST_EDGE = ("Bit", "CLIP", "ConvNext")  # for these, a single size is that of the shorter side
_DEFAULTED = (
    "size", "crop_size", "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad",
    "image_mean", "image_std", "resample", "rescale_factor", "crop_pct",
)  # fmt: skip
_CLASS_TASKS = ("ForImageClass", "Segmentation", "ObjectDetection")
_UNSUPPORTED = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order")


def load_huggingface_model(directory: Path) -> LoadedModel:
    """Load the model and the preprocessing that a directory contains.

    The class is the one named in config.json; of a vision-language model only the vision tower is
    used. Nothing is downloaded, and no code of the directory is executed. A model without class
    logits, such as a backbone, can be recorded, but has no class to explain.

    Args:
        directory: Directory as written by `save_pretrained`.

    Raises:
        FileNotFoundError: If the directory or its config.json does not exist.
        ImportError: If transformers is not installed.
        ValueError: If transformers lacks the class, weights are missing, hold NaN or would execute
            code, or the model does not take images.
    """
    library, config, model = read_huggingface_model(directory)
    notes = ["the code in the model directory is not executed"] if config.get("auto_map") else []
    if tower := vision_tower(model):
        notes.append(
            f"only the vision tower of {type(model).__name__} is used: {tower[0]}, a "
            f"{type(tower[1]).__name__}"
        )
        model = tower[1]
    elif getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise ValueError(f"{directory} holds a {type(model).__name__}, which does not take images")
    check_loaded_weights(model, directory)
    transform = huggingface_preprocessing(library, directory, model, notes)
    return LoadedModel(model.eval(), transform, _class_names(model), str(directory), tuple(notes))


def read_huggingface_model(
    directory: Path, **loading: Any
) -> tuple[Any, dict[str, Any], nn.Module]:
    """Return transformers, the content of config.json and the model of a directory.

    Args:
        directory: Directory as written by `save_pretrained`.
        loading: Options of `from_pretrained`, such as `dtype` and `device_map`.

    Raises:
        FileNotFoundError: If the directory or its config.json does not exist.
        ImportError: If transformers is not installed, or accelerate for a `device_map`.
        ValueError: If transformers lacks the class, or weights are missing or would execute code.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} must be a directory with a config.json, as written by save_pretrained; "
            "visattn downloads nothing"
        )
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need transformers: pip install 'visattn[hf]'"
        ) from error
    config = _read_json(directory / "config.json")
    if loading.get("device_map") and importlib.util.find_spec("accelerate") is None:
        raise ImportError("a device map needs accelerate: pip install accelerate")
    model_class = _load_model_class(library, config, directory)
    return library, config, _load_weights(model_class, directory, loading)


def _load_model_class(library: Any, config: Mapping[str, Any], directory: Path) -> Any:
    """Return the transformers class that a config names."""
    architectures = config.get("architectures") or ()
    if not architectures:
        return library.AutoModel
    name = str(architectures[0])
    model_class = getattr(library, name, None) if name.isidentifier() else None
    if isinstance(model_class, type) and issubclass(model_class, library.PreTrainedModel):
        return model_class
    own_code = "; its own code is not executed" if config.get("auto_map") else ""
    raise ValueError(
        f"the model in {directory} cannot be built: transformers {library.__version__} has no "
        f"class {name}{own_code}"
    )


def _load_weights(model_class: Any, directory: Path, options: Mapping[str, Any]) -> nn.Module:
    """Load a model with all of its weights."""
    has_safetensors = any(directory.glob("*.safetensors"))
    if not has_safetensors:
        read_state_dict(directory)  # refuses pickles that would execute code
    logging: Any = importlib.import_module("transformers.utils.logging")
    progress_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # missing weights are reported below
    try:
        model, loading = model_class.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=has_safetensors,
            weights_only=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the model in {directory} cannot be built: {error}") from error
    finally:
        logging.set_verbosity(verbosity)
        if progress_bar:
            logging.enable_progress_bar()
    if missing := sorted(key for key in loading["missing_keys"] if "pooler" not in key):
        raise ValueError(
            f"{directory} lacks {len(missing)} weights of {type(model).__name__}, "
            f"for example {', '.join(missing[:3])}"
        )
    return model


def _class_names(model: nn.Module) -> tuple[str, ...]:
    """Return the class names of a classifier or dense model, or () if it has none."""
    labels = cast("Any", model.config).id2label or {}
    names = [str(labels[index]) for index in sorted(labels)]
    has_names = all(not name.startswith("LABEL_") for name in names)
    has_classes = any(task in type(model).__name__ for task in _CLASS_TASKS)
    if not (has_names and has_classes):
        return ()
    if sorted(labels) != list(range(len(labels))):
        raise ValueError(
            f"id2label in config.json must have the numbers 0 to {len(labels) - 1}, got "
            f"{short_repr(sorted(labels))}: names would be given to other classes"
        )
    return unique_names(names)


def huggingface_preprocessing(
    library: Any, directory: Path, model: nn.Module, notes: list[str]
) -> v2.Compose | None:
    """Return the preprocessing of the directory; None, with a note, for the default one.

    Args:
        library: The module transformers.
        directory: Directory as written by `save_pretrained`.
        model: Its model.
        notes: Receives a sentence if the default is assumed.
    """
    config = _processor_config(library, directory)
    assumed = (
        "images are resized and cropped to the size in config.json, and normalized with the "
        f"default mean and std of {cast('Any', model.config).model_type}"
    )
    if config is None:
        notes.append(f"{directory} has no preprocessor_config.json: {assumed}")
        return None
    try:
        return huggingface_transform(config)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        notes.append(f"the preprocessing in {directory} is not supported ({reason}): {assumed}")
        return None


def _processor_config(library: Any, directory: Path) -> dict[str, Any] | None:
    """Return the config of the image processor, with the defaults of its class."""
    config: Any = None
    if (file := directory / "preprocessor_config.json").is_file():
        config = _read_json(file)
    elif (file := directory / "processor_config.json").is_file():
        config = _read_json(file).get("image_processor")
    if not isinstance(config, dict):
        return None
    name = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    kind = getattr(library, str(name), None)
    defaults = {key: getattr(kind, key, None) for key in _DEFAULTED} if kind else {}
    return {key: value for key, value in defaults.items() if value is not None} | config


def huggingface_transform(config: Mapping[str, Any]) -> v2.Compose:
    """Return the torchvision transform that equals a transformers image processor.

    The steps are those of the fast processors, which work on tensors.

    Args:
        config: Content of preprocessor_config.json.

    Raises:
        ValueError: If it contains other steps than resizing, center crop, rescaling and
            normalization.

    Example:
        >>> steps = huggingface_transform({"size": {"shortest_edge": 8}, "crop_size": 5,
        ...     "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
        >>> steps(torch.zeros(3, 20, 30, dtype=torch.uint8)).shape
        torch.Size([3, 5, 5])
    """
    if unsupported := [name for name in _UNSUPPORTED if config.get(name)]:
        raise ValueError(
            f"the preprocessing step {', '.join(unsupported)} is not supported: pass a torchvision "
            "transform instead"
        )
    steps: list[Any] = [v2.PILToTensor()]
    if config.get("do_resize", True):
        steps += _resize_steps(config)
    if config.get("do_center_crop", False):
        steps.append(v2.CenterCrop(_sides(config["crop_size"])))
    if config.get("do_rescale", True):
        factor = float(config.get("rescale_factor", 1 / 255))
        if abs(factor * 255 - 1) > 1e-3:
            raise ValueError(f"rescale_factor must be 1/255, got {factor}: pass a transform")
        steps.append(v2.ToDtype(torch.float32, scale=True))
    else:
        steps.append(v2.ToDtype(torch.float32))
    if config.get("do_normalize", True):
        steps.append(v2.Normalize(list(config["image_mean"]), list(config["image_std"])))
    return v2.Compose(steps)


def _resize_steps(config: Mapping[str, Any]) -> list[Any]:
    mode = _MODES.get(config.get("resample", 2))
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    if "size" not in config:
        raise ValueError(
            "the preprocessing must resize images to one size, but this image processor"
            f"{f' ({kind})' if kind else ''} has none: it cuts images of any shape into "
            "patches, as SigLIP 2 NaFlex does; pass a model of fixed resolution, or a torchvision "
            "transform"
        )
    size = config["size"]
    if mode is None or (isinstance(size, Mapping) and "longest_edge" in size):
        raise ValueError(
            f"resizing to {size} with filter {config.get('resample')} is not supported: pass a "
            "torchvision transform instead"
        )
    if isinstance(size, int) and kind.startswith(_SHORTEST_EDGE):
        size = {"shortest_edge": size}
    if not (isinstance(size, Mapping) and "shortest_edge" in size):
        return [v2.Resize(_sides(size), interpolation=mode)]
    side = int(size["shortest_edge"])
    if not kind.startswith("ConvNext"):
        return [v2.Resize(side, interpolation=mode)]
    if side >= 384:  # not cropped, and resized without keeping the aspect ratio
        return [v2.Resize((side, side), interpolation=mode)]
    longer = int(side / (config.get("crop_pct") or 224 / 256))
    return [v2.Resize(longer, interpolation=mode), v2.CenterCrop(side)]


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return int(size), int(size)


def _read_json(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file.

    Raises:
        ValueError: If it is not JSON or does not hold a mapping.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a mapping, got {type(content).__name__}")  # noqa: TRY004 (a file's fault)
    return content
