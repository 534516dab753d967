"""Model files and model names: `save`, `load` and `load_model`."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from visattn.insertion.insertion import check_all_saved, trained_tensors
from visattn.io.atomic import atomic_write
from visattn.io.messages import did_you_mean
from visattn.models.backbones.huggingface import load_huggingface_model
from visattn.models.backbones.pretrained import (
    LoadedModel,
    load_timm_model,
    load_torchvision_model,
)
from visattn.models.backbones.text_models import load_text_model
from visattn.models.backbones.timm_classifier import load_weights
from visattn.models.backbones.user_code import is_user_code, load_user_model, load_user_object
from visattn.models.saving.bundled import find_bundled_model, is_model_name, list_bundled_models
from visattn.models.saving.card import ModelCard
from visattn.models.saving.checkpoint import read_model
from visattn.models.saving.config import is_saved, model_classes, model_config, restore_model
from visattn.models.saving.hub import (
    MODEL_FILE,
    HubName,
    download_file,
    parse_hub_name,
    upload_folder,
)
from visattn.models.saving.runs import find_run, run_checkpoint
from visattn.models.saving.weight_files import (
    check_loaded_weights,
    check_weight_types,
    read_safetensors,
    write_safetensors,
)
from visattn.recording.model_config import ClassNames, parse_class_names

__all__ = ["LoadedModel", "load", "load_blocks", "load_model", "save", "save_blocks"]

_FORMS = (
    "timm:NAME, torchvision:NAME, hf:DIRECTORY, run:DIRECTORY, FILE.py:NAME, package.module:NAME, "
    "hf://USER/NAME, one of `visattn models` or an exported .safetensors file"
)
_HUB_CARD = "README.md"
_IMAGE = "example.png"


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    card: ModelCard | None = None,
    private: bool = False,
) -> None:
    """Write a visattn model to one safetensors file, from which `load` rebuilds it.

    Args:
        model: The model; its weights keep their precision.
        path: The file; or a repository on the Hugging Face hub, `hf://USER/NAME[@BRANCH]`, to which
            the file is uploaded with its card, in one commit.
        card: Card of the model; beside a local file it gets the suffix `.md`, and its image `.png`.
        private: Whether a new repository on the hub is private.

    Raises:
        ValueError: If the model is not of a visattn class, or the name does not end in
            .safetensors.
        FileExistsError: If the card would replace a file that is not beside a model.
        OSError: If the file cannot be written; as huggingface_hub raises it, if the hub refuses the
            upload or cannot be reached.
        ImportError: If the hub is named and huggingface_hub is not installed.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> file = getfixture("tmp_path") / "encoder.safetensors"
        >>> save(SmallEncoder((24, 24), channels=8), file)
        >>> load(file).channels
        8
    """
    if not is_saved(model):
        raise ValueError(
            f"only visattn models ({', '.join(model_classes())}) can be described and saved, got "
            f"{type(model).__name__}; for other models save the weights, "
            "torch.save(model.state_dict(), 'weights.pth'), and name the code that builds the "
            "model: --model FILE.py:NAME --weights weights.pth"
        )
    if name := parse_hub_name(os.fspath(path)):
        _upload(model, name, card or ModelCard(), private=private)
        return
    if card is None:
        write_safetensors(path, model.state_dict(), model_config(model))
        return
    file = Path(path)
    text, image = file.with_suffix(".md"), file.with_suffix(".png")
    if not file.exists() and (text.exists() or (card.image is not None and image.exists())):
        raise FileExistsError(
            f"the card of {file} would replace {text.name} or {image.name}, which are there "
            "already, without a model: rename them, or give the model another name"
        )
    _write_card(model, card, text, image, file.name)
    write_safetensors(file, model.state_dict(), model_config(model))


def _upload(model: nn.Module, name: HubName, card: ModelCard, *, private: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save(model, folder / MODEL_FILE)
        _write_card(model, card, folder / _HUB_CARD, folder / _IMAGE, f"hf://{name.repo}")
        upload_folder(name, folder, message=f"Upload {type(model).__name__}", private=private)


def _write_card(model: nn.Module, card: ModelCard, file: Path, image: Path, name: str) -> None:
    """Write a card and its image, if it has one."""
    pixels = card.encode_image()
    if pixels is not None:
        atomic_write(image, pixels)
    atomic_write(file, card.to_markdown(model, name, image=image.name if pixels else ""))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Return the model of an exported visattn file, in evaluation mode, on the CPU.

    Args:
        path: The file; or a model that comes with visattn, such as `scenes-captioner`; or a
            repository on the Hugging Face hub, `hf://USER/NAME[@REVISION]`, of which the file is
            downloaded into the cache of huggingface_hub.

    Only files of visattn models describe their architecture. Load the weights of other models with
    `model.load_state_dict`, or with `load_model("FILE.py:NAME", weights=FILE)`.

    Nothing in the file is executed.

    Raises:
        FileNotFoundError: If the file, the name, the repository or its revision does not exist.
        ValueError: If the file is damaged, is not an exported visattn model but a checkpoint or the
            folder of a run, contains NaN weights, or lies on another machine than the hub.
        OSError: As huggingface_hub raises it, if the hub refuses the download or cannot be reached
            and the file is not in the cache.
        ImportError: If the hub is named and huggingface_hub is not installed.

    Example:
        >>> load("scenes-captioner").encoder.img_size
        (80, 80)
        >>> load("nowhere.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: no model at nowhere.safetensors; `visattn export` writes one
    """
    if name := parse_hub_name(os.fspath(path)):
        path = download_file(name, MODEL_FILE)
    elif is_model_name(path):
        path = find_bundled_model(os.fspath(path))
    elif Path(path).suffix == ".ckpt" or Path(path).is_dir():
        raise ValueError(
            f"{path} is no exported model: va.load_model loads the best checkpoint of the folder "
            "of a run, and `visattn export` makes a file of a checkpoint"
        )
    weights, config = read_safetensors(path)
    model = restore_model(config, weights, source=path)
    check_loaded_weights(model, path)
    return model


def save_blocks(
    model: nn.Module, path: str | os.PathLike[str], trainable: Sequence[str] = ()
) -> None:
    """Write the weights of the inserted blocks to a safetensors file, without those of the model.

    Args:
        model: Any network with inserted blocks; see `visattn.insert(..., freeze=True)`.
        path: The file.
        trainable: Names of further modules that were trained, such as `fc`.

    Raises:
        ValueError: If there are no blocks, a name matches nothing, something else was trained
            after `freeze=True`, or the name of the file does not end in .safetensors.

    Example:
        >>> import torch, visattn
        >>> file, x = getfixture("tmp_path") / "se.safetensors", torch.randn(1, 3, 11, 13)
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> _ = visattn.insert(model, "se", position="0", example=x, freeze=True)
        >>> save_blocks(model, file)
        >>> load_blocks(model, file)
    """
    tensors = trained_tensors(model, trainable)
    if not tensors:
        raise ValueError(f"{type(model).__name__} has no inserted blocks to save")
    check_all_saved(model, trainable)
    write_safetensors(path, tensors, {"blocks": sorted(tensors)})


def load_blocks(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Read weights of inserted blocks into a model that has the same blocks inserted.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, or its blocks are not those of the model.

    Example:
        >>> load_blocks(nn.Linear(2, 2), "nowhere.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: no model at nowhere.safetensors; `visattn export` writes one
    """
    weights, description = read_safetensors(path)
    own = model.state_dict()
    wrong = [name for name in weights if name not in own or own[name].shape != weights[name].shape]
    absent = sorted(trained_tensors(model).keys() - weights.keys())
    if "blocks" not in description or wrong or absent:
        raise ValueError(
            f"{path} must hold the weights of the blocks inserted into this model; it differs in "
            f"{', '.join([*wrong, *absent][:3]) or 'its kind'}: insert the same blocks, with the "
            "same arguments, before loading"
        )
    check_weight_types(own, weights, path)
    model.load_state_dict(weights, strict=False)


def load_model(
    spec: str | os.PathLike[str] | nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    pretrained: bool = False,
    model_kwargs: Mapping[str, Any] | None = None,
    text: Sequence[str] | None = None,
    class_names: ClassNames | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    transform: Any = None,
) -> LoadedModel:
    """Return a model with its preprocessing and class names, in evaluation mode, on the CPU.

    Only local files are read, unless `pretrained` requests a download. Code is only executed for
    `FILE.py:NAME` and `package.module:NAME`.

    Args:
        spec: One of: an exported file, as `visattn export` and `visattn.save` write it, or another
            name that `load` accepts; the directory of a training run, of which the best checkpoint
            is loaded (as a string also `run:DIRECTORY`); `timm:NAME`; `torchvision:NAME`;
            `hf:DIRECTORY`, as `save_pretrained` writes it; `FILE.py:NAME` or `package.module:NAME`
            with a class or function that builds a model; or an `nn.Module`, which is used as it is.
        weights: File with weights for a model of timm, torchvision, your own code or
            an `nn.Module`, as `read_state_dict` accepts it. A timm or torchvision model with 1000
            classes is taken for an ImageNet classifier.
        pretrained: Download the pretrained weights of timm or torchvision.
        model_kwargs: Constructor arguments of timm, torchvision or your own code.
        text: Texts to compare images with, for `hf:DIRECTORY` of CLIP, SigLIP and alike, or
            `open_clip:NAME`: the model is then a classifier of these texts.
        class_names: Names of the classes, in their order or by index, in place of those of the
            model. A model of timm, torchvision or your own code is built for as many classes as
            its weights have; without weights, for as many as there are names.
        mean: Mean of each channel, or of all, that images are normalized with, in place of that of
            the model, where pixels are 0 to 1.
        std: Standard deviation of each channel, or of all; with `mean`.
        transform: Preprocessing in place of that of the model, by steps of torchvision or timm;
            or the name of one, or of a function that returns one, as in `FILE.py:NAME` and
            `package.module:NAME`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ImportError: If the library is not installed.
        ValueError: If the name or an argument is unknown, two sources of weights are given, or the
            weights do not fit the model.

    Example:
        >>> load_model("torchvision:squeezenet1_1").class_names[:2]
        ('tench', 'goldfish')
        >>> load_model("timm:resnet81")
        Traceback (most recent call last):
        ValueError: unknown timm model 'resnet81'; did you mean resnet18...
    """
    file = None if weights is None else Path(weights)
    if text is not None:
        is_name = not (pretrained or model_kwargs or isinstance(spec, nn.Module))
        if class_names:
            raise ValueError("the texts are the classes of the model: class_names= has no use")
        loaded = _text_model(spec if is_name else "", text, file)
    else:
        loaded = _load(spec, _Building(file, pretrained, model_kwargs, class_names))
    if class_names:
        loaded = replace(loaded, class_names=parse_class_names(class_names, None))
    if transform is not None:
        steps = load_user_object(transform) if isinstance(transform, str) else transform
        loaded = replace(loaded, transform=steps)
    return replace(loaded, mean=mean, std=std)


class _Building(NamedTuple):
    """How a model is built, as `load_model` takes it."""

    weights: Path | None
    pretrained: bool
    model_kwargs: Mapping[str, Any] | None
    class_names: ClassNames | None


def _load(spec: str | os.PathLike[str] | nn.Module, building: _Building) -> LoadedModel:
    """Return a model with the preprocessing and class names of its library."""
    file, pretrained, model_kwargs, class_names = building
    if isinstance(spec, nn.Module):
        if pretrained or model_kwargs:
            raise ValueError(
                "an nn.Module is built already: pretrained and model_kwargs have no use"
            )
        notes = load_weights(spec, file) if file else ()
        return LoadedModel(spec, None, _class_names(spec), str(file or "in memory"), notes)
    name = os.fspath(spec)
    # A Path is a file, whatever its name: only a string names a library.
    kind, colon, rest = name.partition(":") if isinstance(spec, str) else ("", "", "")
    if colon and kind == "timm":
        return load_timm_model(
            rest, weights=file, pretrained=pretrained, timm_kwargs=model_kwargs,
            class_names=class_names,
        )  # fmt: skip
    if colon and kind == "torchvision":
        return load_torchvision_model(
            rest, weights=file, pretrained=pretrained, model_kwargs=model_kwargs,
            class_names=class_names,
        )  # fmt: skip
    if isinstance(spec, str) and is_user_code(name):
        if pretrained:
            raise ValueError(f"pretrained belongs to timm:NAME and torchvision:NAME, not to {name}")
        return load_user_model(
            name, weights=file, model_kwargs=model_kwargs, class_names=class_names
        )
    if file or pretrained or model_kwargs:
        raise ValueError(
            "weights and arguments belong to timm:NAME, torchvision:NAME and your own code, "
            f"pretrained to the first two; {name} brings its own"
        )
    if colon and kind == "hf" and not rest.startswith("//"):
        return load_huggingface_model(Path(rest).expanduser())
    if colon and kind == "run":
        return _run_model(Path(rest).expanduser())
    if Path(name).is_dir() and (find_run(Path(name)) / "checkpoints").is_dir():
        return _run_model(Path(name))
    is_known = name.startswith("hf://") or name in list_bundled_models()
    if name.endswith(".safetensors") or is_known or not isinstance(spec, str):
        model = load(name)
        note = f"{name} knows drawn scenes alone: on photos its output has no meaning"
        notes = (note,) if is_model_name(name) else ()
        return LoadedModel(model, None, _class_names(model), name, notes)
    raise ValueError(_unknown_spec(name, kind if colon else ""))


def _text_model(spec: Any, texts: Sequence[str], weights: Path | None) -> LoadedModel:
    """Return a classifier of texts; the spec is empty if it does not go with them."""
    if not spec:
        raise ValueError(
            "text= belongs to hf:DIRECTORY and open_clip:NAME, without pretrained and "
            "model_kwargs; a model in memory takes explain(model, images, text=, processor=)"
        )
    return load_text_model(os.fspath(spec), list(texts), weights=weights)


def _run_model(folder: Path) -> LoadedModel:
    """Return the model of the best checkpoint of a run; the folder may hold this run alone."""
    checkpoint = run_checkpoint(find_run(folder))
    model = read_model(checkpoint)
    return LoadedModel(model, None, _class_names(model), str(checkpoint))


def _class_names(model: nn.Module) -> tuple[str, ...]:
    return tuple(map(str, getattr(model, "class_names", None) or getattr(model, "classes", ())))


def _unknown_spec(spec: str, kind: str) -> str:
    if kind == "open_clip":
        hint = "; open_clip:NAME compares images with texts: give them with --text or text=[...]"
    elif kind:
        hint = f"; {did_you_mean(kind, ['timm', 'torchvision', 'hf', 'run'])}"
    elif Path(spec).suffix in (".pth", ".pt", ".ckpt", ".bin"):
        hint = (
            "; a weight file does not describe its model: name the model too, as in "
            f"--model timm:NAME --weights {spec}"
        )
    elif Path(spec).is_dir():
        hint = f"; did you mean hf:{spec} or run:{spec}?"
    elif spec.isidentifier():
        hint = f"; did you mean timm:{spec} or torchvision:{spec}?"
    else:
        hint = did_you_mean(spec, list_bundled_models(), otherwise="")
        hint = f"; {hint}" if hint else ""
    return f"a model is named {_FORMS}, got {spec!r}{hint}"
