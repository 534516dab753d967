"""Classifiers and detectors of transformers, built from their config.json."""

import importlib
import importlib.util
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.geometry.preprocessing import ReverseChannels, UnsupportedTransform
from visattn.io.safe_text import read_json, short_repr
from visattn.models.backbones.pretrained import LoadedModel, unique_names
from visattn.models.saving.weight_files import check_loaded_weights
from visattn.recording.model_config import vision_tower

_OWN_ATTENTION = ("eager", "sdpa", "flex_attention", None)
_ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")


def names_other_attention(config: object) -> bool:
    """Return whether a config names an attention that transformers would download and run.

    Example:
        >>> names_other_attention({"vision_config": {"attn_implementation": "user/kernel"}})
        True
        >>> names_other_attention({"attn_implementation": "sdpa"})
        False
    """
    if isinstance(config, list):
        return any(map(names_other_attention, config))
    if not isinstance(config, dict):
        return False
    return any(
        _is_other(value) if key in _ATTENTION_KEYS else names_other_attention(value)
        for key, value in config.items()
    )


def _is_other(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_is_other, value.values()))
    return value not in _OWN_ATTENTION


_MODES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # of Pillow
_SHORTEST_EDGE = ("Bit", "CLIP", "ConvNext")  # for these, a single size is that of the shorter side
_MAX_JSON_BYTES = 64 * 2**20  # the names of a million classes
_LONGEST_SIDE = 8000  # pixels
_TOLERANCE = 0.02  # of normalized pixels, in the mean
_PASS_TRANSFORM = "pass a torchvision transform that does the same, transform="
_CLASS_TASKS = ("ForImageClass", "Segmentation", "ObjectDetection")
_UNSUPPORTED = ("do_pad", "do_thumbnail", "do_align_long_axis")


def load_huggingface_model(directory: Path) -> LoadedModel:
    """Load the model and the preprocessing that a directory contains.

    The class is the one named in config.json; of a vision-language model only the vision tower is
    used. Nothing is downloaded, and no code of the directory is executed. A model without class
    logits, such as a backbone, can be recorded, but has no class to explain.

    Raises:
        FileNotFoundError: If the directory or its config.json does not exist.
        ImportError: If transformers is not installed.
        ValueError: If transformers lacks the class, weights are missing, hold NaN or would execute
            code, or the model does not take images.
    """
    library, config, model = read_huggingface_model(directory)
    notes = own_code_notes(config)
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


def own_code_notes(config: Mapping[str, Any]) -> list[str]:
    """Return the note on code that a directory brings, if its config names any."""
    return ["the code in the model directory is not executed"] if config.get("auto_map") else []


def read_huggingface_model(
    directory: Path, **loading: Any
) -> tuple[Any, dict[str, Any], nn.Module]:
    """Return transformers, the content of config.json and the model of a directory.

    It is loaded with options of `from_pretrained`, such as `dtype` and `device_map`, and refused as
    `load_huggingface_model` says.
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
    if names_other_attention(config):
        loading["config"] = _without_attention(library, model_class, directory)
    return library, config, _load_weights(model_class, directory, loading)


def _without_attention(library: Any, model_class: Any, directory: Path) -> Any:
    """Return the config of a model without its attention: some are code on the hub."""
    config_class = getattr(model_class, "config_class", None) or library.AutoConfig
    try:
        config = config_class.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        config._attn_implementation = None  # noqa: SLF001 (transformers has no setter)
    except Exception as error:
        raise _build_error(directory, error) from error
    return config


def _build_error(directory: Path, error: Exception) -> ValueError:
    """Return the error of a model that transformers cannot build, whatever it raises."""
    name = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    reason = textwrap.shorten(str(error), 300, placeholder=" ...")
    return ValueError(f"the model in {directory} cannot be built: {name}{reason}")


def _load_model_class(library: Any, config: Mapping[str, Any], directory: Path) -> Any:
    """Return the transformers class that a config names."""
    architectures = config.get("architectures") or ()
    if not architectures:
        return library.AutoModel
    name = architectures[0] if isinstance(architectures, list) else architectures
    if not isinstance(name, str):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"architectures in {directory / 'config.json'} must be a list of class names, got "
            f"{short_repr(architectures)}"
        )
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
    logging: Any = importlib.import_module("transformers.utils.logging")
    progress_bar = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
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
    except Exception as error:  # its own error classes, ZeroDivisionError, IndexError ...
        raise _build_error(directory, error) from error
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
) -> Any:
    """Return the preprocessing of the directory; None, with a note, if it has none.

    There is a note, too, if it is not supported; images are then refused without a transform.
    """
    try:
        config = _processor_config(library, directory)
        if config is not None:
            return huggingface_transform(config)
    except Exception as error:  # noqa: BLE001 - a value of a wrong type raises anything
        note = f"the preprocessing in {directory} is not supported: {error}"
        notes.append(note)
        return UnsupportedTransform(note)
    notes.append(
        f"{directory} has no preprocessor_config.json: images are resized and cropped to the "
        "size in config.json, and normalized with the default mean and std of "
        f"{cast('Any', model.config).model_type}"
    )
    return None


def _processor_config(library: Any, directory: Path) -> dict[str, Any] | None:
    """Return the config of the image processor; None if there is none."""
    config: Any = None
    if (file := directory / "preprocessor_config.json").is_file():
        config = _read_json(file)
    elif (file := directory / "processor_config.json").is_file():
        config = _read_json(file).get("image_processor")
    if not isinstance(config, dict):
        return None
    if _class_name(config):
        return config
    try:
        processor = library.AutoImageProcessor.from_pretrained(  # that of the model type
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ValueError(f"{file.name} names no class ({error}); {_PASS_TRANSFORM}") from error
    return {**processor.to_dict(), "image_processor_type": type(processor).__name__}


def _class_name(config: Mapping[str, Any]) -> str:
    """Return the name of the image processor that a config names, as transformers has it now."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    return name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast")


def _build_processor(config: Mapping[str, Any]) -> Any:
    """Return the image processor of a config; None if it names none."""
    name = _class_name(config)
    if not name:
        return None
    library = importlib.import_module("transformers")
    processor_class: Any = getattr(library, name, None) if name.isidentifier() else None
    if processor_class is None:
        raise ValueError(f"transformers has no image processor {name}; {_PASS_TRANSFORM}")
    try:
        return processor_class.from_dict(dict(config))
    except Exception as error:
        raise ValueError(f"{name} does not take it ({error}); {_PASS_TRANSFORM}") from error


def is_image_processor(value: object) -> bool:
    """Whether something is a processor of transformers that takes images.

    Example:
        >>> is_image_processor("anything")
        False
    """
    own = getattr(value, "image_processor", value)
    is_class = type(own).__name__.endswith(("ImageProcessor", "ImageProcessorFast"))
    return is_class and callable(own) and hasattr(own, "to_dict")


def processor_transform(processor: Any) -> Any:
    """Return the torchvision transform that equals an image processor of transformers.

    It is compared with the processor on two photos.

    Raises:
        ValueError: If it takes steps that have no counterpart, or the transform gives something
            else.
    """
    from torchvision.transforms import v2  # slow to import

    own = getattr(processor, "image_processor", processor)
    name = type(own).__name__
    flags = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
    config = {**own.to_dict(), "image_processor_type": name}
    config |= {flag: bool(getattr(own, flag, False)) for flag in flags}
    try:
        transform = _transform_steps(config)
    except KeyError as error:
        raise ValueError(f"{name} lacks {error}; {_PASS_TRANSFORM}") from error
    # An upright photo smaller than usual inputs, and a wide one that is larger.
    for size in ((83, 61), (253, 331)):
        photo = _photo(size)
        ours = v2.Compose(transform.transforms[1:])(photo)  # it is a tensor already
        theirs = _pixel_values(own, photo)
        if theirs is None:
            raise ValueError(f"{name} gives more than one image for a photo; {_PASS_TRANSFORM}")
        if ours.shape != theirs.shape:
            sizes = " and ".join(" x ".join(map(str, image.shape)) for image in (theirs, ours))
            raise ValueError(f"{name} takes other steps (sizes {sizes}); {_PASS_TRANSFORM}")
        difference = _mean_difference(ours, theirs)
        if not difference < _TOLERANCE:
            raise ValueError(
                f"{name} takes other steps (mean difference {difference:.2g}); {_PASS_TRANSFORM}"
            )
    return transform


def _mean_difference(ours: Float[Tensor, "c y x"], theirs: Float[Tensor, "c y x"]) -> float:
    """Return the mean difference of images; crops may start one pixel apart, by their rounding."""
    inner = ours[:, 1:-1, 1:-1]
    rows, columns = inner.shape[1:]
    shifted = (
        theirs[:, top : top + rows, left : left + columns] for top in range(3) for left in range(3)
    )
    return min(float((inner - image).abs().mean()) for image in shifted)


def _photo(size: tuple[int, int]) -> UInt8[Tensor, "c y x"]:
    """Return a smooth synthetic photo whose red, green and blue differ."""
    rows = torch.linspace(0, 1, size[0])[:, None]
    columns = torch.linspace(0, 1, size[1])
    red = 0.9 - 0.4 * rows * columns
    green = 0.3 + 0.5 * (6 * columns + 2 * rows).sin().abs()
    blue = (0.4 * rows + 0.2 * columns).expand(*size)
    return (255 * torch.stack([red, green.expand(*size), blue])).byte()


def _pixel_values(processor: Any, photo: UInt8[Tensor, "c y x"]) -> Tensor | None:
    """Return the image that a processor gives for a photo; None if it gives something else."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        values = processor(photo, return_tensors="pt")["pixel_values"]
    except Exception:  # noqa: BLE001 - whatever a processor that takes more than a photo raises
        return None
    finally:
        logging.set_verbosity(verbosity)
    is_single = isinstance(values, Tensor) and values.ndim == 4 and len(values) == 1
    return values[0] if is_single else None


def huggingface_transform(config: Mapping[str, Any]) -> Any:
    """Return the torchvision transform that equals a transformers image processor.

    The steps are those of the fast processors, which work on tensors. If the config names the class
    of the processor, they are compared with it. Other steps than resizing, center crop, rescaling,
    normalization and the exchange of red and blue are refused.

    Example:
        >>> steps = huggingface_transform({"size": {"shortest_edge": 8}, "crop_size": 5,
        ...     "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
        >>> steps(torch.zeros(3, 20, 30, dtype=torch.uint8)).shape
        torch.Size([3, 5, 5])
    """
    processor = _build_processor(config)
    if processor is not None:
        return processor_transform(processor)
    try:
        return _transform_steps(config)
    except KeyError as error:
        raise ValueError(f"preprocessor_config.json must have the entry {error}") from error
    except TypeError as error:
        raise ValueError(
            f"preprocessor_config.json has an entry of another type: {error}"
        ) from error


def _transform_steps(config: Mapping[str, Any]) -> Any:
    """Return the transform of a config with all its defaults."""
    from torchvision.transforms import v2  # slow to import

    if unsupported := [name for name in _UNSUPPORTED if config.get(name)]:
        raise ValueError(
            f"the preprocessing step {', '.join(unsupported)} is not supported; {_PASS_TRANSFORM}"
        )
    steps: list[Any] = [v2.PILToTensor()]
    if config.get("do_resize", True):
        steps += _resize_steps(config)
    if config.get("do_center_crop", False):
        steps.append(v2.CenterCrop(_sides(config["crop_size"])))
    steps += _rescale_steps(config)
    if config.get("do_normalize", True):
        steps.append(v2.Normalize(list(config["image_mean"]), list(config["image_std"])))
    if config.get("include_top"):  # EfficientNet divides by the standard deviation again
        steps.append(v2.Normalize([0.0] * 3, list(config["image_std"])))
    if config.get("do_flip_channel_order"):
        steps.append(ReverseChannels())
    return v2.Compose(steps)


def _rescale_steps(config: Mapping[str, Any]) -> list[Any]:
    """Return the steps from uint8 to [0, 1], or to [-1, 1]."""
    from torchvision.transforms import v2  # slow to import

    if not config.get("do_rescale", True):
        return [v2.ToDtype(torch.float32)]
    factor = float(config.get("rescale_factor") or 1 / 255)
    if config.get("rescale_offset") and abs(factor * 127.5 - 1) < 1e-3:
        return [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
    if abs(factor * 255 - 1) > 1e-3 or config.get("rescale_offset"):
        raise ValueError(f"rescale_factor must be 1/255, got {factor}; {_PASS_TRANSFORM}")
    return [v2.ToDtype(torch.float32, scale=True)]


def _resize_steps(config: Mapping[str, Any]) -> list[Any]:
    from torchvision.transforms import InterpolationMode, v2  # slow to import

    filter_name = _MODES.get(config.get("resample", 2))
    name = _class_name(config)
    if "size" not in config:
        raise ValueError(
            "the preprocessing must resize images to one size, but this image processor"
            f"{f' ({name})' if name else ''} has none: it cuts images of any shape into "
            "patches, as SigLIP 2 NaFlex does; pass a model of fixed resolution, or a torchvision "
            "transform"
        )
    size = config["size"]
    if filter_name is None or (isinstance(size, Mapping) and size.get("longest_edge")):
        raise ValueError(
            f"resizing to {size} with filter {config.get('resample')} is not supported; "
            f"{_PASS_TRANSFORM}"
        )
    mode = InterpolationMode(filter_name)
    if isinstance(size, int) and name.startswith(_SHORTEST_EDGE):
        size = {"shortest_edge": size}
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if shortest is None:
        return [v2.Resize(_sides(size), interpolation=mode)]
    side = _side(shortest)
    # Levit, PoolFormer and ConvNext compute the side to resize to from the one in their config.
    if name.startswith("Levit"):
        return [v2.Resize(int(side * 256 / 224), interpolation=mode)]
    if name.startswith("PoolFormer") and config.get("crop_pct"):
        return [v2.Resize(int(side / config["crop_pct"]), interpolation=mode)]
    if not name.startswith("ConvNext"):
        return [v2.Resize(side, interpolation=mode)]
    if side >= 384:  # not cropped, and resized without keeping the aspect ratio
        return [v2.Resize((side, side), interpolation=mode)]
    longer = int(side / (config.get("crop_pct") or 224 / 256))
    return [v2.Resize(longer, interpolation=mode), v2.CenterCrop(side)]


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return _side(size["height"]), _side(size["width"])
    return _side(size), _side(size)


def _side(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= _LONGEST_SIDE:
        raise ValueError(
            f"sizes must be whole numbers from 1 to {_LONGEST_SIDE:,}, got {short_repr(value)}; "
            f"{_PASS_TRANSFORM}"
        )
    return value


def _read_json(file: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file."""
    content = read_json(file, _MAX_JSON_BYTES)
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a mapping, got {type(content).__name__}")  # noqa: TRY004 (a file's fault)
    return content
