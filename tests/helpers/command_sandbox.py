"""A folder with input for every command: photos, models, a config, damaged files."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from named_weights import fill as filled
from PIL import Image
from question_models import small_detector, small_mac
from task_runs import tiny_run
from torch import nn

import visattn
from visattn.models import (
    AttentionResNet,
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    UNet,
    VisionTransformer,
)
from visattn.models.config import model_config
from visattn.results.kinds import SPECIAL_TOKENS

CONFIG = tiny_run(test=2)
CLASSES = ("ant", "bee", "cat")


def fill(folder: Path) -> None:
    """Write the files that tests/exit_codes.md lists into a folder."""
    (folder / "configs").mkdir()
    (folder / "configs" / "scenes_demo.yaml").write_text(CONFIG)
    (folder / "configs" / "torn.yaml").write_text("model: [CaptioningTask\n")
    for name in ("torn.safetensors", "torn.ckpt"):
        (folder / name).write_bytes(b"<html>not found</html>")
    (folder / "runs" / "unfinished").mkdir(parents=True)
    (folder / "runs" / "unfinished" / "config.yaml").write_text(CONFIG)
    _add_photos(folder)
    _add_models(folder)
    (folder / "captions.txt").write_text("dog.png\ta red ball\ncat.png\ta blue box\n")
    (folder / "references.csv").write_text("image,caption\ndog.png,a red ball .\ncat.png,a box .\n")


def _add_photos(folder: Path) -> None:
    random = np.random.default_rng(3)
    for place in ("photos", "masks", "mixed", "empty"):
        (folder / place).mkdir()
    for name, size in (("dog", (31, 53)), ("cat", (59, 29))):
        pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{name}.png")
        mask = np.zeros(size, np.uint8)
        mask[5:19, 5:19] = 255
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    shutil.copy(folder / "photos" / "dog.png", folder / "mixed")
    (folder / "mixed" / "torn.jpg").write_text("<html>not found</html>")
    (folder / "empty" / "notes.json").write_text(json.dumps("no image"))


def _add_models(folder: Path) -> None:
    words = (*SPECIAL_TOKENS, "red", "green", "blue")
    encoder = SmallEncoder((24, 40), channels=12, coord_scale=1.0)
    captioner = ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3)
    eye = RecurrentAttentionModel(
        CLASSES, (24, 40), (0.5,) * 3, (0.3,) * 3, glimpse_size=7, num_scales=2, num_glimpses=3,
        hidden_size=11,
    )  # fmt: skip
    vit = VisionTransformer(
        CLASSES, img_size=(24, 40), patch_size=8, embed_dim=12, depth=2, num_heads=3
    )
    models = {
        "captioner": captioner, "eye": eye, "boxes": small_detector(), "asks": small_mac(),
        "cnn": AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(32, 40)), "vit": vit,
        "areas": UNet(("sky", *CLASSES), SmallEncoder((24, 40), channels=8), block="gate"),
    }  # fmt: skip
    for name, model in models.items():
        visattn.save(filled(model), folder / f"{name}.safetensors")
    add_run(folder / "runs" / "tried" / "1", captioner)


def add_run(folder: Path, model: nn.Module) -> None:
    """Write the run directory of a model without training."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    saved = {"state_dict": weights, "visattn": {"model": model_config(model)}}
    torch.save(saved, folder / "checkpoints" / "best.ckpt")
