"""Converts configs of older versions: removed options are dropped, data modules are replaced."""

from dataclasses import fields
from typing import Any

from visattn import data
from visattn.data.classification.digit_sequences import DigitSequenceSpec
from visattn.models.config import model_classes, without_gone

_GONE = {
    "timeout", "progress_seconds", "save_steps", "max_nonfinite_steps", "channels_last",
    "float32_matmul_precision", "compile",
}  # fmt: skip
_GONE_ARGUMENTS = {
    "QuestionTask": {"num_panels"},
    "CropPanels": {"height"},
    "CaptionData": {"batches_per_pool", "format"},
    "ClassificationData": {"allow_missing_classes"},
}
_SOURCES = {  # sources that had their own data modules
    "CaptionDataModule": ("CaptionData", "CaptionFile"),
    "ClutteredMNISTDataModule": ("ClassificationData", "ClutteredDigits"),
    "CocoDetectionDataModule": ("DetectionData", "CocoInstances"),
    "CocoSegmentationDataModule": ("SegmentationData", "CocoInstances"),
    "DigitSequenceDataModule": ("SequenceData", "DigitCanvases"),
    "FolderDataModule": ("ClassificationData", "ClassFolders"),
    "SceneSegmentationDataModule": ("SegmentationData", "SceneObjects"),
    "ScenesDataModule": ("CaptionData", "SceneCaptions"),
    "ScenesDetectionDataModule": ("DetectionData", "SceneObjects"),
    "SingleObjectDataModule": ("ClassificationData", "SingleObjects"),
    "SortOfClevrDataModule": ("QuestionData", "SortOfClevrImages"),
    "TorchvisionDataModule": ("ClassificationData", "TorchvisionImages"),
    "VQADataModule": ("QuestionData", "VQAFiles"),
}


def modernized(value: Any, gone: set[str] = _GONE) -> Any:
    """Return a config without removed options and arguments, with current data modules."""
    if isinstance(value, list):
        return [modernized(each, set()) for each in value]
    if not isinstance(value, dict):
        return value
    value = {key: modernized(each, set()) for key, each in value.items() if key not in gone}
    path, arguments = str(value.get("class_path")), value.get("init_args")
    name = path.rpartition(".")[2]
    if name.endswith("DataModule") and path.removeprefix("visattn.training.") == name:
        value = _with_source(name, dict(arguments or {}))
        name, arguments = value["class_path"], value["init_args"]
    if isinstance(arguments, dict) and name in model_classes():
        value["init_args"] = without_gone(model_classes()[name], arguments)
    for key in _GONE_ARGUMENTS.get(name, set()) & set(arguments or ()):
        del arguments[key]
    return value


def _with_source(name: str, old: dict[str, Any]) -> dict[str, Any]:
    """Convert the config of an old data module to a current one with a source.

    Raises:
        ValueError: If that is not possible, or the config relies on old defaults.
    """
    module, source = _SOURCES.get(name, ("a module of visattn.training", "one of visattn.data"))
    options: dict[str, Any] = {k: v for k, v in old.items() if v is not None or k == "val"}
    if name == "CocoDetectionDataModule" and "train" in options:
        options["annotations"] = pattern = options.pop("train").replace("train", "{split}")
        if options["val"] == pattern.replace("{split}", "val"):
            del options["val"]
    # Runs write all options, including unused paths of validation data.
    if name not in _SOURCES or "batch_size" not in old or {*options} >= {"annotations", "val"}:
        raise ValueError(
            f"{name} is now data: {{class_path: {module}, init_args: {{source: {{class_path: "
            f"{source}, init_args: ...}}}}}}; --data.help CLASS and --data.source.help CLASS list "
            "their options"
        )
    if "canvas_size" in options:
        clutter = _taken(options, "num_distractors", "distractor_size")
        if options.get("blend") == "sum":  # other options were removed
            del options["blend"]
        options["canvas"] = {"size": options.pop("canvas_size"), **clutter}
    if source == "DigitCanvases":
        options["spec"] = _taken(options, *(each.name for each in fields(DigitSequenceSpec)))
    names = {each.name for each in fields(getattr(data, source))} - {"seed"}
    given = _taken(options, *names)
    # Small images of one size; other images are resized after the transforms.
    size = (32 if "CIFAR" in given["dataset"] else 28) if "dataset" in given else None
    transforms = [{"Affine": each} for each in _taken(options, "affine").values()]
    random = [*options.pop("train_transforms", []), *options.pop("batch_transforms", [])]
    for key, each in (("transforms", transforms), ("train_transforms", random)):
        if each:
            options[key] = [new for past in each for new in _transforms(past, size)]
    return _named(module, source=_named(source, **given), **options)


def _named(name: str, **options: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": options}


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}


def _transforms(old: Any, size: int | None) -> list[Any]:
    """Return torchvision's transforms for an old transform, for an image size."""
    [(name, options)] = old.items() if isinstance(old, dict) else [(old, {})]
    if name == "RandomTranslate" and size:
        return [_named("RandomCrop", size=size, padding=options.get("pixels", 4))]
    if name == "Affine" and size:
        canvas = options.pop("canvas_size", [size])
        turn, shift = (options.pop(key, 0.0) for key in ("degrees", "translate"))
        options |= {"degrees": [-turn, turn], "translate": [shift] * 2, "interpolation": "bilinear"}
        pad = _named("Pad", padding=(canvas[0] - size) // 2)
        return [pad, _named("RandomAffine", **options)]
    if isinstance(value := options.get("value"), list):  # the color of RandomErasing
        options["value"] = round(sum(value) / len(value))
    return [_named(name, **options)]
