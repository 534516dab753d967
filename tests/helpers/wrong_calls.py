"""Calls of public functions with one wrong argument each, and what comes of them.

    python tests/helpers/wrong_calls.py FIRST STEP FOLDER

tries every STEP-th call from number FIRST and prints one line of JSON for each call that is not
refused: without shape checks, as users call.
"""

import copy
import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from detection_data import small_detector
from question_models import small_mac
from torch import nn

import visattn as va
from visattn.images.reader import ImageError
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.resnet import AttentionResNet
from visattn.models.unet import UNet
from visattn.pipelines.scanpath import glimpses
from visattn.results.attention_map import AttentionMap
from visattn.results.kinds import SPECIAL_TOKENS

PACKAGE = str(Path(va.__file__).parent)
PHOTO = np.random.default_rng(3).integers(0, 256, (31, 53, 3), dtype=np.uint8)
HUGE = 10**18
WRONG: list[Any] = [
    None, 5, -1, 0, HUGE, 1.5, -0.5, math.nan, math.inf, True, "x", "", "no/such/file", b"x", [],
    ["x"], [None], {}, {"a": 1}, (), (3, 5), object(), int, len, nn.Linear(2, 3), torch.zeros(2),
    torch.full((1, 3, 32, 40), math.nan), np.zeros((0, 0, 3), np.uint8), np.zeros((2, 2), object),
    Path("x"), "\x1b[2J", {1, 2}, 2 + 1j,
]  # fmt: skip
# What a user's own function, module or tensor raises is left as it is.
OWN_CODE = (type, nn.Module, torch.Tensor, type(len))
RUN = ("model", "example", "block", "position", "target", "transform")
SYNONYMS = {"path": "file", "spec": "model", "model_kwargs": "arguments", "label": "class"}


class Call(NamedTuple):
    """A function, and arguments with which it works; `changes` if it modifies its model."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    changes: bool = False


class Outcome(NamedTuple):
    """What came of a call: refused, accepted, escaped or changed, and the reason."""

    call: str
    kind: str
    reason: str


def small_models() -> dict[str, nn.Module]:
    """Return a model of each kind, in training mode where users forget eval()."""
    torch.manual_seed(4)
    words = (*SPECIAL_TOKENS, "red", "green", "blue")
    encoder = SmallEncoder((24, 40), channels=12)
    captioner = ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3)
    eye = RecurrentAttentionModel(
        ("ant", "bee"), (24, 40), (0.5,) * 3, (0.3,) * 3, glimpse_size=7, num_scales=2,
        num_glimpses=3, hidden_size=11,
    )  # fmt: skip
    cnn = AttentionResNet(("ant", "bee", "cat"), depth=8, stem_width=4, img_size=(32, 40))
    unet = UNet(("background", "cat"), SmallEncoder((24, 40), channels=8))
    kinds = {"captioner": captioner, "eye": eye, "cnn": cnn, "unet": unet}
    return kinds | {"boxes": small_detector(), "asks": small_mac()}


def calls(folder: Path) -> dict[str, Call]:
    """Return the calls by name; files that they need are written to the folder."""
    models = small_models()
    cnn, example = models["cnn"], torch.zeros(1, 3, 32, 40)
    blocks = copy.deepcopy(cnn)
    va.insert(blocks, "se", position="residual", example=example, reduction=2)
    va.save_blocks(blocks, folder / "blocks.safetensors")
    va.save(cnn, folder / "cnn.safetensors")
    common = {"model": cnn, "images": PHOTO}
    maps = {"values": torch.rand(3, 5), "site": "layer4", "kind": "gradient"}
    known = {
        "caption": Call(va.caption, {"model": models["captioner"], "images": PHOTO, "beam_size": 2,
            "num_captions": 1, "max_length": 3, "min_length": 1, "length_penalty": 0.0,
            "resize_mode": "crop", "batch_size": 2, "places": None, "seed": 3}),
        "ask": Call(va.ask, {"model": models["asks"], "images": PHOTO,
            "questions": "what color is the ring", "num_answers": 2, "resize_mode": "pad"}),
        "detect": Call(va.detect, {"model": models["boxes"], "images": PHOTO, "threshold": 0.1,
            "max_detections": 3, "layer": -1, "resize_mode": "pad"}),
        "segment": Call(_all(va.segment), {"model": models["unet"], "images": PHOTO,
            "resize_mode": "pad", "batch_size": 2}),
        "glimpses": Call(glimpses, {"model": models["eye"], "images": PHOTO, "seed": 3}),
        "explain": Call(va.explain, {**common, "method": "gradcam", "target": "bee",
            "img_size": None, "class_names": None, "transform": None, "resize_mode": None,
            "align": "edges", "batch_size": 3, "originals": None, "text": None,
            "processor": None}),
        "methods_for": Call(va.methods_for, {"model": cnn, "img_size": None}),
        "Explainer": Call(va.Explainer, {"model": cnn, "img_size": None, "class_names": None,
            "transform": None, "resize_mode": None, "align": "edges", "dense": False,
            "mean": None, "std": None}),
        "record": Call(_recorded, {"model": models["captioner"], "queries": "all", "layers": None,
            "heads": None, "differentiable": False}),
        "insert": Call(va.insert, {"model": cnn, "block": "se", "position": "residual",
            "example": example, "stages": None, "signal": None, "init": "identity",
            "freeze": False, "trainable": (), "reduction": 2}, changes=True),
        "summary": Call(va.summary, {"model": cnn, "example": example}),
        "remove": Call(va.remove, {"model": blocks}, changes=True),
        "bake": Call(va.bake, {"model": blocks}, changes=True),
        "save": Call(va.save, {"model": cnn, "path": folder / "out.safetensors", "card": None,
            "private": False}),
        "save_blocks": Call(va.save_blocks, {"model": blocks, "path": folder / "b.safetensors",
            "trainable": ()}),
        "load_blocks": Call(va.load_blocks, {"model": blocks,
            "path": folder / "blocks.safetensors"}, changes=True),
        "load": Call(va.load, {"path": folder / "cnn.safetensors"}),
        "load_model": Call(va.load_model, {"spec": str(folder / "cnn.safetensors"),
            "weights": None, "pretrained": False, "model_kwargs": None, "text": None}),
        "create_block": Call(va.create_block, {"name": "cbam", "channels": 8, "reduction": 2}),
        "list_blocks": Call(va.list_blocks, {"kind": "channel"}),
        "block_info": Call(va.block_info, {"name": "se"}),
        "overlay": Call(va.overlay, {"image": PHOTO, "attention_map": np.ones((3, 5), np.float32),
            "geometry": None, "vmax": 1.0, "smooth": True, "outline": None}),
        "read_image": Call(va.read_image, {"source": PHOTO, "max_pixels": 10**6}),
        "AttentionMap": Call(AttentionMap, maps),
        "PixelTarget": Call(va.PixelTarget, {"label": None, "x": 3.0, "y": 5.0}),
        "Scenes": Call(va.Scenes, {"num_scenes": 3, "size": 32, "seed": 5}),
    }  # fmt: skip
    arguments = {
        "rise": {"num_masks": 3, "grid_size": 3, "keep_probability": 0.5, "baselines": "mean",
                 "score_type": "logits", "seed": 1, "internal_batch_size": 2},
        "occlusion": {"sliding_window_size": 20, "stride": 20, "baselines": "black"},
        "smoothgrad": {"num_samples": 2, "stdev_spread": 0.1, "signed": False, "seed": 2},
        "integrated_gradients": {"n_steps": 2, "baselines": "white", "signed": True},
        "scorecam": {"max_channels": 3, "internal_batch_size": 2, "layer": -1},
        "spectral_residual": {"grid_size": 8, "sigma": 1.0},
    }  # fmt: skip
    for method, values in arguments.items():
        fixed = {**common, "method": method}
        known[method] = Call(_with(va.explain, fixed), values)
    return known


def wrong_calls(known: dict[str, Call]) -> Iterator[tuple[str, Call, str, Any]]:
    """Yield every call with every argument replaced by every wrong value."""
    for name, call in known.items():
        for argument in call.arguments:
            for number, value in enumerate(WRONG):
                yield f"{name}({argument}=#{number} {value!r:.40})", call, argument, value


def outcome(name: str, call: Call, argument: str, value: Any) -> Outcome:
    """Make a call and judge what comes of it."""
    arguments = {**call.arguments, argument: value}
    if call.changes and isinstance(arguments["model"], nn.Module):
        arguments["model"] = copy.deepcopy(arguments["model"])
    model = arguments.get("model")
    before = _state(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call.function(**arguments)
        except (ValueError, TypeError, OSError, ImportError) as error:
            kind, reason = _judged(error, argument, value)
        except Exception as error:  # noqa: BLE001 (which is what is looked for)
            own = argument in RUN and isinstance(value, OWN_CODE)
            kind, reason = "refused" if own else "escaped", repr(error)[:200]
        else:
            return Outcome(name, "accepted", "")
    if _state(model) != before:
        return Outcome(name, "changed", reason)
    return Outcome(name, kind, reason)


def _judged(error: Exception, argument: str, value: Any) -> tuple[str, str]:
    """Return whether visattn itself raised an error, and says what it is about."""
    shown = value if isinstance(value, str) else type(value).__name__
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    text = f"{type(error).__name__}: {error}"
    own = file.startswith(PACKAGE) or type(error).__name__ == "TypeCheckError"
    if (argument in RUN and isinstance(value, OWN_CODE)) or isinstance(error, OSError | ImageError):
        return "refused", text
    nouns = [SYNONYMS.get(argument, argument), shown, *argument.rstrip("s").split("_")]
    named = any(noun in text.lower() for noun in nouns if noun) or "ask in the words" in text
    return ("refused" if own and named else "escaped"), text[:200]


def _state(model: object) -> object:
    """Return what a failed call must leave as it was."""
    parts: list[Any] = [torch.random.get_rng_state().sum().item()]
    if isinstance(model, nn.Module):
        for module in model.modules():
            hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
            parts.append((module.training, hooks))
        parts += [name for name, _ in model.named_parameters()]
    return parts


def _all(function: Callable[..., Iterator[Any]]) -> Callable[..., list[Any]]:
    return lambda **arguments: list(function(**arguments))


def _with(function: Callable[..., Any], fixed: dict[str, Any]) -> Callable[..., Any]:
    return lambda **arguments: function(**fixed, **arguments)


def _recorded(model: Any, **arguments: Any) -> None:
    with va.record(model, **arguments):
        va.caption(model, PHOTO, beam_size=1, max_length=2)


if __name__ == "__main__":
    first, step, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    known = calls(folder)
    listed = list(wrong_calls(known))[first::step]
    counts: dict[str, int] = {}
    for each in listed:
        result = outcome(*each)
        counts[result.kind] = counts.get(result.kind, 0) + 1
        if result.kind != "refused":
            sys.stdout.write(json.dumps(result._asdict()) + "\n")
    sys.stdout.write(json.dumps(counts) + "\n")
