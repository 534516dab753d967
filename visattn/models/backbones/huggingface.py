"""Models of transformers from a local directory, and the preprocessing of their processors."""

import importlib
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from visattn.geometry.preprocessing import UnsupportedTransform
from visattn.io.safe_text import read_json, reading
from visattn.models.loaded import Loaded, mark, unique_names
from visattn.recording.model_config import vision_tower

_TOLERANCE = 0.02  # mean difference of normalized pixels
_CLASS_TASKS = ("ForImageClass", "Segmentation", "ObjectDetection")
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def load_huggingface_model(directory: Path, **loading: Any) -> nn.Module:
    """Load the model in a directory with its processor; no code of the directory is executed.

    Args:
        directory: Directory written by `save_pretrained` of model and processor.
        loading: Options of `from_pretrained`, such as `dtype` and `device_map`.

    Raises:
        FileNotFoundError: If the directory has no config.json.
        ValueError: If transformers lacks the class, or weights are missing.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} must be a directory with a config.json, as save_pretrained writes it; "
            "visattn downloads nothing"
        )
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        message = "Hugging Face models need transformers: pip install 'visattn[hf]'"
        raise ImportError(message) from error
    try:
        model = _read_model(library, directory, loading)
    except Exception as error:  # its own error classes, ZeroDivisionError, IndexError ...
        raise ValueError(f"the model in {directory} cannot be built: {error}") from error
    has_text = vision_tower(model) is not None or hasattr(model, "generate")
    processor, error = _read_processor(library, directory, has_text=has_text)
    has_file = any((directory / name).is_file() for name in _PROCESSOR_FILES)
    saved = "save it there with processor.save_pretrained"
    note = f"the processor in {directory} cannot be loaded: {error}; {saved}"
    lacks_images = has_file and not is_image_processor(processor)
    transform = UnsupportedTransform(note) if lacks_images else None  # instead of a silent default
    names = _class_names(model)
    return mark(model, Loaded(str(directory), names, transform, processor, (note,) * bool(error)))


def _read_model(library: Any, directory: Path, loading: dict[str, Any]) -> nn.Module:
    """Return the model in a directory; all of its weights must be there."""
    config = directory / "config.json"
    with reading(config):
        architectures = read_json(config).get("architectures")
    model_class: Any = library.AutoModel
    if architectures:
        model_class = getattr(library, architectures[0], None)
    is_model = isinstance(model_class, type) and issubclass(model_class, library.PreTrainedModel)
    if architectures and not is_model:
        raise ValueError(
            f"transformers has no model {architectures[0]}; code of the directory is not executed"
        )
    config_class: Any = getattr(model_class, "config_class", None) or library.AutoConfig
    config = config_class.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    config._attn_implementation = None  # noqa: SLF001 (a config may name code on the hub)
    model, report = model_class.from_pretrained(
        directory,
        config=config,
        local_files_only=True,
        trust_remote_code=False,
        weights_only=True,
        output_loading_info=True,
        **loading,
    )
    if missing := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        raise ValueError(f"it lacks {len(missing)} weights, such as {', '.join(missing[:3])}")
    return model


def _read_processor(library: Any, directory: Path, *, has_text: bool) -> tuple[Any, str]:
    """Return the processor in a directory, or its parts, and the reason if there is none.

    It is a processor of images and texts, a pair of image processor and tokenizer, or an image
    processor.
    """
    found, error = dict[str, Any](), ""
    for kind in ("Processor", "ImageProcessor", "Tokenizer") if has_text else ("ImageProcessor",):
        AutoProcessor = getattr(library, f"Auto{kind}")  # noqa: N806 (a class)
        try:
            found[kind] = AutoProcessor.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as raised:  # noqa: BLE001 - a file with values of wrong types raises anything
            error = (str(raised).strip().splitlines() or [type(raised).__name__])[0][:200]
        # Without a processor config, AutoProcessor returns only the tokenizer, or another part.
        joint = found.get("Processor")
        if hasattr(joint, "image_processor") and hasattr(joint, "tokenizer"):
            return joint, ""
    parts = [found[kind] for kind in ("ImageProcessor", "Tokenizer") if kind in found]
    if len(parts) == 1 + has_text:
        return (tuple(parts) if has_text else parts[0]), ""
    return found.get("ImageProcessor"), error


def _class_names(model: nn.Module) -> tuple[str, ...]:
    """Return the class names of a classifier or dense model; () if it has none."""
    labels = cast("Any", model.config).id2label or {}
    if not any(task in type(model).__name__ for task in _CLASS_TASKS):
        return ()
    if sorted(labels) != list(range(len(labels))):
        raise ValueError(
            f"id2label in config.json must have the numbers 0 to {len(labels) - 1}: otherwise "
            "classes would get wrong names"
        )
    names = [str(labels[index]) for index in sorted(labels)]
    return () if any(name.startswith("LABEL_") for name in names) else unique_names(names)


def image_model(model: nn.Module) -> nn.Module:
    """Return the model, or its vision tower if it also takes texts."""
    tower = vision_tower(model)
    return model if tower is None else tower[1]


def image_transform(loaded: Loaded) -> Any:
    """Return the image preprocessing of a loaded model; None if its config suffices.

    The preprocessing of an unsupported processor raises the reason when it is used.
    """
    if loaded.transform is not None or not is_image_processor(loaded.processor):
        return loaded.transform
    try:
        return processor_transform(loaded.processor)
    except ValueError as error:
        return UnsupportedTransform(str(error))


def _image_part(processor: Any) -> Any:
    """Return the image processor of a processor, or of a pair with a tokenizer."""
    own = processor[0] if isinstance(processor, tuple) else processor
    return getattr(own, "image_processor", own)


def is_image_processor(value: object) -> bool:
    """Whether an object is a processor of transformers for images.

    Example:
        >>> is_image_processor("anything")
        False
    """
    own = _image_part(value)
    is_class = type(own).__name__.endswith(("ImageProcessor", "ImageProcessorFast"))
    return is_class and callable(own) and hasattr(own, "to_dict")


def processor_transform(processor: Any) -> Any:
    """Return the torchvision transform that equals an image processor of transformers.

    It resizes, crops and normalizes with the values of the processor, and is compared with it on
    two photos.

    Raises:
        ValueError: If the processor has other steps.
    """
    own = _image_part(processor)
    name = type(own).__name__
    try:
        transform = _transform(own)
        # A portrait photo smaller than usual inputs, and a larger landscape photo.
        same = all(_agree(own, transform, _photo(size)) for size in ((83, 61), (253, 331)))
    except Exception as error:  # processors that need more than a photo raise any error
        raise ValueError(f"{name} is not supported ({error}); {_INSTEAD}") from error
    if not same:
        raise ValueError(f"{name} has other steps than resize, crop and normalize; {_INSTEAD}")
    return transform


_INSTEAD = "pass a torchvision transform that does the same, transform="


def _transform(own: Any) -> Any:
    """Return a transform with the values of an image processor."""
    from PIL.Image import Resampling
    from torchvision.transforms import InterpolationMode, v2  # slow to import

    steps: list[Any] = [v2.PILToTensor()]
    if own.do_resize:
        size = {key: each for key, each in dict(own.size).items() if each}
        if "longest_edge" in size:  # limits only photos wider than those compared
            raise ValueError(f"it resizes to {size}")
        sides = (size["height"], size["width"]) if "height" in size else size["shortest_edge"]
        mode = InterpolationMode[Resampling(own.resample).name]
        steps.append(v2.Resize(sides, mode))
    if getattr(own, "do_center_crop", False):
        crop = dict(own.crop_size)
        steps.append(v2.CenterCrop((crop["height"], crop["width"])))
    steps.append(v2.ToDtype(torch.float32, scale=True))
    if own.do_normalize:
        steps.append(v2.Normalize(list(own.image_mean), list(own.image_std)))
    return v2.Compose(steps)


def _agree(processor: Any, transform: Any, photo: UInt8[Tensor, "c y x"]) -> bool:
    """Return whether a transform and a processor have equal outputs for a photo.

    Crops may differ by one pixel, due to rounding.
    """
    from torchvision.transforms import v2  # slow to import

    ours = v2.Compose(transform.transforms[1:])(photo)  # already a tensor
    theirs = processor(photo, return_tensors="pt")["pixel_values"]
    if theirs.shape != (1, *ours.shape):
        return False
    inner = ours[:, 1:-1, 1:-1]
    rows, columns = inner.shape[1:]
    shifts = [(top, left) for top in range(3) for left in range(3)]
    crops = [theirs[0, :, top : top + rows, left : left + columns] for top, left in shifts]
    return min(float((inner - each).abs().mean()) for each in crops) < _TOLERANCE


def _photo(size: tuple[int, int]) -> UInt8[Tensor, "c y x"]:
    """Return a smooth synthetic photo whose red, green and blue differ."""
    rows, columns = torch.linspace(0, 1, size[0])[:, None], torch.linspace(0, 1, size[1])
    red = 0.9 - 0.4 * rows * columns
    green = (0.3 + 0.5 * (6 * columns + 2 * rows).sin().abs()).expand(*size)
    blue = (0.4 * rows + 0.2 * columns).expand(*size)
    return (255 * torch.stack([red, green, blue])).byte()
