"""Every file of configs/, and every variant on their page, as a small run on generated data."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import timm
import torch
import yaml
from caption_data import write_caption_data
from classification_data import (
    accept_test_cifar_files,
    write_cifar,
    write_digits,
    write_photo_folders,
)
from question_data import write_vqa
from safetensors.torch import save_file
from segmentation_data import write_instances
from task_runs import LOSSES

FOLDER = Path(__file__).parents[2] / "configs"


class Recipe(NamedTuple):
    """A config, with the options of a variant."""

    name: str
    config: Path
    options: tuple[str, ...] = ()

    def class_path(self, part: str = "data") -> str:
        """Return the class of the data or of the model."""
        for word in self.options:
            if word.startswith(f"--{part}="):
                return word.partition("=")[2]
        return yaml.safe_load(self.config.read_text())[part]["class_path"]

    def source(self) -> str:
        """Return the class of the source of the data."""
        data = yaml.safe_load(self.config.read_text())["data"]
        return data["init_args"]["source"]["class_path"]


def _variant(command: str) -> Recipe:
    """Return the recipe of a command of the page: its run folder has the name of the variant."""
    words = shlex.split(command)
    values = dict(zip(words[::2], words[1::2], strict=True))
    config = FOLDER / f"{values.pop('--config')}.yaml"
    name = Path(values.pop("--run")).name
    values.pop("--init_from", None)
    return Recipe(name, config, tuple(f"{option}={value}" for option, value in values.items()))


CONFIGS = [Recipe(path.stem, path) for path in sorted(FOLDER.glob("*.yaml"))]
_COMMANDS = re.findall(
    r"^visattn fit (--run .*)$", (FOLDER / "README.md").read_text(), re.MULTILINE
)
VARIANTS = [_variant(command) for command in _COMMANDS]
SMALL = {
    "SceneCaptions": "--data.source.train=2 --data.source.val=2 --data.source.test=2"
    " --data.batch_size=3 --data.num_workers=0",
    "CaptionFile": "--data.batch_size=2 --data.min_word_freq=1 --data.feature_cache_dir=features",
    "TorchvisionImages": "--data.batch_size=2 --data.source.val=3 --data.num_workers=0",
    "ClassFolders": "--data.batch_size=2 --data.num_workers=0",
    "ClutteredDigits": "--data.batch_size=2 --data.source.val=3",
    "DigitCanvases": "--data.batch_size=2 --data.source.val=3",
    "SceneObjects": "--data.source.train=4 --data.source.val=3 --data.source.test=3"
    " --data.batch_size=2",
    "CocoInstances": "--data.batch_size=2 --data.num_workers=0",
    "SortOfClevrImages": "--data.source.train=4 --data.source.val=3 --data.source.test=3"
    " --data.batch_size=2 --data.source.questions=2",
    "VQAFiles": "--data.batch_size=2 --data.num_workers=0",
    "SingleObjects": "--data.source.train=4 --data.source.val=3 --data.source.test=3"
    " --data.batch_size=2",
}
# Further options, so that the tests run on a slow CPU.
SLOW_CPU = {
    "vit_imagenet": "--trainer.accelerator=cpu --trainer.devices=1 --trainer.strategy=auto"
    " --model.classifier.depth=1",
    "flickr8k_soft": "--model.captioner.encoder.img_size=[64,64] --model.captioner.embed_dim=8"
    " --model.captioner.hidden_size=16 --model.captioner.attention_dim=8",
    "coco_transformer": "--trainer.accelerator=cpu --model.captioner.encoder.pretrained=false"
    " --model.captioner.encoder.img_size=[96,96] --data.num_workers=0",
    "coco_soft": "--trainer.accelerator=cpu --model.captioner.encoder.pretrained=false"
    " --model.captioner.encoder.img_size=[96,96] --data.num_workers=0",
    "coco_detr": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.detector.encoder.pretrained=false --model.detector.encoder.name=resnet18"
    " --model.detector.encoder.img_size=[64,64] --model.detector.num_queries=11"
    " --model.detector.dim=32 --model.detector.num_decoder_layers=2",
    "coco_unet": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.segmenter.encoder.pretrained=false --model.segmenter.encoder.img_size=[64,64]",
    "flowers_mobilenetv2_cbam": "--model.classifier.img_size=[64,64]",
    "photo_captioner": "--trainer.precision=32-true --model.captioner.encoder.img_size=[64,64]"
    " --model.captioner.embed_dim=24",
    "scenes_transformer": "--model.captioner.encoder.channels=16 --model.captioner.embed_dim=24",
    "scenes_unet": "--model.segmenter.encoder.img_size=[64,64] --data.source.image_size=64",
    "vqa2_cross": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.vqa_model.encoder.pretrained=false --model.vqa_model.encoder.name=resnet18"
    " --model.vqa_model.encoder.img_size=[64,64] --model.vqa_model.dim=32",
}
SLOW_CPU["coco_hard"] = SLOW_CPU["coco_adaptive"] = SLOW_CPU["coco_soft"]
# These have each task, model, data module and callback; the others are only built, but trained with
# -m slow.
TRAINED = {
    "cifar10_resnet20", "coco_detr", "dram_sequences", "flickr8k_soft",
    "flowers_mobilenetv2_cbam", "ram_scenes", "ram_translated60", "read_digits", "scenes_detr",
    "scenes_transformer", "scenes_unet", "sort_of_clevr_mac", "stn_mnist",
    "vit_cifar10", "vqa2_cross",
}  # fmt: skip
BEAM_SEARCH = {"CaptionData", "SequenceRecognitionTask"}
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


def write_shared_data(folder: Path) -> None:
    """Write small data sets in the layout of VISATTN_DATA, with random weights."""
    paths = write_caption_data(folder / "flickr8k", photos=7)
    for path, name in (
        (paths.photos, "Images"),
        (paths.captions, "Flickr8k.token.txt"),
        (paths.train, "Flickr_8k.trainImages.txt"),
        (paths.validation, "Flickr_8k.devImages.txt"),
    ):
        path.rename(folder / "flickr8k" / name)
    coco = write_caption_data(folder / "coco", photos=7, karpathy=True)
    coco.captions.rename(folder / "coco" / "dataset_coco.json")
    for photo in coco.photos.iterdir():
        photo.rename(folder / "coco" / photo.name)
    for split in ("train", "val"):
        write_instances(folder / "coco", f"{split}2017", count=3)
        write_vqa(folder / "vqa2", split)
    (folder / "weights").mkdir()
    write_digits(folder)
    write_cifar(folder)
    for name in ("flowers", "imagenet"):
        write_photo_folders(folder / name, train=2, val=1)
    torch.manual_seed(0)
    weights = timm.create_model("mobilenetv2_100", pad_type="same").state_dict()
    save_file(weights, folder / "weights" / "mobilenetv2_100.safetensors")


def small_run(recipe: Recipe) -> list[str]:
    data, task = recipe.class_path(), recipe.class_path("model")
    options = f"{SMALL[recipe.source()]} {SLOW_CPU.get(recipe.name, '')}".split()
    if not BEAM_SEARCH.isdisjoint({data, task}):
        options += ["--model.beam_size=1"]
    return last_of_each([f"--config={recipe.config}", *recipe.options, *options, *QUIET])


def last_of_each(words: Iterable[str]) -> list[str]:
    """Return options of the form `--name=value`, of those with the same name the last one."""
    return list({word.partition("=")[0]: word for word in words}.values())


def use_small_data(patch: pytest.MonkeyPatch, data: Path, folder: Path) -> None:
    """Train in an empty folder on the small data sets, and log losses from the first on."""
    patch.setattr("sys.argv", ["visattn"])
    patch.setenv("VISATTN_DATA", str(data))
    patch.setenv("VISATTN_TRUST_MODULES", "task_runs")
    accept_test_cifar_files(patch)
    patch.chdir(folder)
    LOSSES.clear()
