"""`save` writes a model to one file; `load` returns a model by file or name.

A safetensors file has the weights and, in its header, the config that builds the model; a training
checkpoint has both too. Nothing in a file is executed.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from visattn.insertion.insertion import check_all_saved, trained_tensors
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import parse_json
from visattn.models.backbones.huggingface import load_huggingface_model
from visattn.models.backbones.names import load_named
from visattn.models.card import model_card
from visattn.models.config import build_model, model_config
from visattn.models.loaded import Loaded, loaded_with, mark
from visattn.models.model_files import (
    bundled_models,
    checkpoint_run,
    find_model,
    parse_hub_name,
    run_config,
)
from visattn.models.weights import describe_mismatch, read_safetensors, read_torch

FORMAT = "visattn-1"


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    card: str | None = None,
    private: bool = False,
) -> None:
    """Write a model of visattn to one safetensors file, from which `load` rebuilds it.

    Args:
        model: The model; its weights keep their precision.
        path: The file; or `hf://USER/NAME[@BRANCH]` on the Hugging Face hub, to which the file is
            uploaded with its card.
        card: The card of a model on the hub, in Markdown; by default that of `model_card`.
        private: Whether a new repository on the hub is private.

    Raises:
        ValueError: If the model is not of a class that a config can name.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> file = getfixture("tmp_path") / "encoder.safetensors"
        >>> save(SmallEncoder((24, 24), channels=8), file)
        >>> load(file).channels
        8
    """
    if not os.fspath(path).startswith("hf://"):
        config = model_config(model)
        if mode := loaded_with(model).resize_mode:
            config["resize_mode"] = mode
        _write(path, model.state_dict(), config)
        return
    from huggingface_hub import HfApi

    repository, revision = parse_hub_name(os.fspath(path))
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder, "model.safetensors"))
        text = card or model_card(model, f"hf://{repository}")
        Path(folder, "README.md").write_text(text, encoding="utf-8")
        hub = HfApi(library_name="visattn")
        hub.create_repo(repository, private=private, exist_ok=True)
        if revision:
            hub.create_branch(repository, branch=revision, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            commit_message=f"Upload {type(model).__name__}",
        )


def _write(path: str | os.PathLike[str], weights: Mapping[str, Tensor], config: Any) -> None:
    """Write weights and a config to a file atomically."""
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"the file of a model must end in .safetensors, got {Path(path).name}")
    header = {"format": FORMAT, "description": json.dumps(config, allow_nan=False)}
    tensors = {  # tied tensors are written separately
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    # A single entry, since safetensors writes several in random order.
    atomic_write(path, to_bytes(tensors, {"visattn": json.dumps(header)}))


def _read(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Return the config and the weights in a file or a checkpoint; nothing in it is executed."""
    if path.suffix == ".safetensors":
        weights, metadata = read_safetensors(path)
        header = parse_json(metadata.get("visattn", "{}"))
        if header.get("format") == FORMAT:
            return parse_json(header["description"]), weights
    else:
        held = read_torch(path)
        if isinstance(held, dict) and held.get("visattn"):
            inner = [key for key in held["state_dict"] if key.startswith("model.")]
            weights = {key.removeprefix("model."): held["state_dict"][key] for key in inner}
            return held["visattn"]["model"], weights
    raise ValueError(
        f"{path} has no model config: name the model too, as in va.load('timm:NAME', "
        f"weights={path.name!r}) or --model FILE.py:NAME --weights {path.name}"
    )


def load(
    name: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    pretrained: bool = False,
    model_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a model by name, in evaluation mode, on the CPU; `--model` of the commands.

    No code in a file is executed, and only `hf://` and `pretrained` download anything. Only
    `FILE.py:NAME` and `package.module:NAME` run code.

    Args:
        name: A file that `save` wrote; the folder of a run of `visattn fit`, of which the best
            checkpoint is loaded, or one of its checkpoints; a model that comes with visattn, such
            as `scenes-captioner`; `hf://USER/NAME[@REVISION]` on the Hugging Face hub;
            `hf:DIRECTORY` as `save_pretrained` of transformers writes it; `timm:NAME`;
            `torchvision:NAME`; or your own code, `FILE.py:NAME` or
            `package.module:NAME`: a class or function that builds a model, or a model.
        weights: File with weights for a model of timm, torchvision or your own code; a classifier
            gets their number of classes.
        pretrained: Download the pretrained weights of timm or torchvision.
        model_kwargs: Constructor arguments of the model of another library or your own code.

    Returns:
        The model. Preprocessing and class names from its library are used by `explain`, `caption`
        and the commands; `visattn.models.loaded.loaded_with(model)` returns them.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a name or an argument is unknown, a file is damaged, or weights do not fit.

    Example:
        >>> load("scenes-captioner").encoder.img_size
        (80, 80)
        >>> load("timm:resnet81")
        Traceback (most recent call last):
        ValueError: unknown timm model 'resnet81'; did you mean resnet18...
    """
    spec = os.fspath(name)
    file = None if weights is None else Path(weights).expanduser()
    arguments = dict(model_kwargs or {})
    model = load_named(spec, file, pretrained=pretrained, model_kwargs=arguments)
    if model is not None:
        return model
    kind, _, rest = spec.partition(":")
    if kind == "hf" and not rest.startswith("//") and not (pretrained or file):
        return load_huggingface_model(Path(rest).expanduser(), **arguments)
    if pretrained or arguments or file:
        if spec.isidentifier():
            find_model(spec)  # raises with suggestions if there is none
        raise ValueError(
            "weights and arguments belong to timm:NAME, torchvision:NAME and your own code, "
            f"pretrained to the first two; {spec} comes with its own"
        )
    path = find_model(spec)
    try:
        config, tensors = _read(path)
        run = checkpoint_run(path)
        has_config = path.suffix == ".ckpt" and (run / "config.yaml").is_file()
        model = build_model(config, run_config(run).read_text("utf-8") if has_config else "")
        if mismatch := describe_mismatch(model.state_dict(), tensors):
            raise ValueError(f"its weights do not fit its config: {mismatch}")
        model.load_state_dict(tensors)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # arguments of wrong types raise any error
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}, {error}"
        raise ValueError(f"{path} cannot be loaded: {reason}") from error
    note = ""
    if spec in bundled_models() and spec.startswith("scenes-"):
        note = f"{spec} knows only synthetic scenes: its output for photos is meaningless"
    weights_of = str(path) if Path(spec).is_dir() else spec
    mode = config.get("resize_mode")
    return mark(model, Loaded(weights_of, on_photos=note, resize_mode=mode))


def save_blocks(
    model: nn.Module, path: str | os.PathLike[str], trainable: Sequence[str] = ()
) -> None:
    """Write only the weights of inserted blocks to a safetensors file.

    Args:
        model: Any network with inserted blocks; see `visattn.insert(..., freeze=True)`.
        path: The file.
        trainable: Names of further modules that were trained, such as `fc`.

    Raises:
        ValueError: If there are no blocks, a name matches nothing, or other weights were trained
            after `freeze=True`.

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
    _write(path, tensors, {"blocks": sorted(tensors)})


def load_blocks(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load weights of inserted blocks into a model with the same blocks inserted.

    Raises:
        ValueError: If the file is damaged, or its blocks are not those of the model.
    """
    weights, _ = read_safetensors(Path(path))
    own = {k: v for k, v in model.state_dict().items() if k in {*weights, *trained_tensors(model)}}
    if mismatch := describe_mismatch(own, weights):
        raise ValueError(f"{path} does not fit: {mismatch}; insert the same blocks first")
    model.load_state_dict(weights, strict=False)
