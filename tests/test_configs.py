"""Every file of configs/ has a head, is parsed, and trains."""

import re
from pathlib import Path
from typing import Any

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
from detection_data import write_coco_instances
from question_data import write_vqa
from safetensors.torch import save_file
from segmentation_data import write_instances
from shard_data import write_caption_shards, write_class_shards

from visattn.cli import main
from visattn.models.serialization.checkpoint import read_model

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
SMALL = {
    "ScenesDataModule": "--data.train=2 --data.val=2 --data.test=2 --data.batch_size=3"
    " --data.num_workers=0",
    "CaptionDataModule": "--data.batch_size=2 --data.min_word_freq=1"
    " --data.feature_cache_dir=features",
    "ShardCaptionDataModule": "--data.shards=${VISATTN_DATA}/shards/flickr8k --data.batch_size=2"
    " --data.min_word_freq=1 --data.feature_cache_dir=features",
    "ShardClassificationDataModule": "--data.shards=${VISATTN_DATA}/shards/flowers"
    " --data.batch_size=2",
    "TorchvisionDataModule": "--data.batch_size=2 --data.val=3 --data.num_workers=0",
    "FolderDataModule": "--data.batch_size=2 --data.num_workers=0",
    "ClutteredMNISTDataModule": "--data.batch_size=2 --data.val=3",
    "DigitSequenceDataModule": "--data.batch_size=2 --data.val=3",
    "ScenesDetectionDataModule": "--data.train=4 --data.val=3 --data.test=3 --data.batch_size=2",
    "CocoDetectionDataModule": "--data.batch_size=2 --data.num_workers=0",
    "SceneSegmentationDataModule": "--data.train=4 --data.val=3 --data.test=3 --data.batch_size=2",
    "CocoSegmentationDataModule": "--data.batch_size=2 --data.num_workers=0",
    "SortOfClevrDataModule": "--data.train=4 --data.val=3 --data.test=3 --data.batch_size=2"
    " --data.questions=2",
    "SceneQuestionsDataModule": "--data.train=4 --data.val=3 --data.test=3 --data.batch_size=2"
    " --data.questions=3 --data.num_workers=0",
    "VQADataModule": "--data.batch_size=2 --data.num_workers=0",
    "SingleObjectDataModule": "--data.train=4 --data.val=3 --data.test=3 --data.batch_size=2",
}
# Further options, so that the tests run on a slow CPU.
SLOW_CPU = {
    "cct_cifar10": "--trainer.precision=32-true --model.classifier.depth=2",
    "vit_imagenet": "--trainer.accelerator=cpu --trainer.devices=1 --trainer.strategy=auto"
    " --model.classifier.depth=1",
    "flickr8k_soft": "--model.captioner.encoder.img_size=[96,96]",
    "coco_transformer": "--trainer.accelerator=cpu --model.captioner.encoder.pretrained=false"
    " --model.captioner.encoder.img_size=[96,96] --data.num_workers=0",
    "coco_hard": "--trainer.accelerator=cpu --model.captioner.encoder.pretrained=false"
    " --model.captioner.encoder.img_size=[96,96] --data.num_workers=0",
    "coco_adaptive": "--trainer.accelerator=cpu --model.captioner.encoder.pretrained=false"
    " --model.captioner.encoder.img_size=[96,96] --data.num_workers=0",
    "coco_detr": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.detector.encoder.pretrained=false --model.detector.encoder.name=resnet18"
    " --model.detector.encoder.img_size=[96,96] --model.detector.num_queries=11"
    " --model.detector.dim=32 --model.detector.num_decoder_layers=2",
    "coco_unet": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.segmenter.encoder.pretrained=false --model.segmenter.encoder.img_size=[64,64]",
    "flowers_mobilenetv2_cbam": "--model.classifier.img_size=[96,96]",
    "vqa2_san": "--trainer.accelerator=cpu --trainer.precision=32-true"
    " --model.vqa_model.encoder.pretrained=false --model.vqa_model.encoder.name=resnet18"
    " --model.vqa_model.encoder.img_size=[64,64] --model.vqa_model.dim=32",
}
# These have each task, model, data module and callback; the others are only built, but trained with
# -m slow.
TRAINED = {
    "cifar10_resnet20_none", "coco_detr", "dram_sequences", "flickr8k_soft",
    "flowers_mobilenetv2_cbam", "ram_scenes", "ram_translated60", "read_digits", "scenes_detr",
    "scenes_questions", "scenes_transformer", "scenes_unet_supervised", "sort_of_clevr_san",
    "stn_mnist", "vit_cifar10", "vqa2_san",
}  # fmt: skip
# Metrics that a test must have, by task or, for captions, by data module.
TEST_METRICS = {
    "ScenesDataModule": {
        "test/caption_accuracy",
        "novel/caption_accuracy",
        "shuffled/caption_accuracy",
        "untrained/caption_accuracy",
    },
    "CaptionDataModule": {"test/bleu-4", "test/cider-d", "shuffled/cider-d", "teacher_forced/lift"},
    "ClassificationTask": {
        f"test/{name}"
        for name in ("accuracy", "balanced_accuracy", "worst_class_accuracy", "calibration_error")
    },
    "DetectionTask": {
        f"test/{name}"
        for name in ("AP", "AP50", "AP_small", "pointing_game", "other_query", "loss")
    },
    "GlimpseTask": {f"test/{name}" for name in ("error", "error_random", "error_raster", "loss")},
    "SequenceRecognitionTask": {
        f"test/{name}" for name in ("sequence_error", "digit_error", "pointing_game", "loss")
    },
    "QuestionTask": {
        f"test/{name}"
        for name in ("mean_accuracy", "majority", "other_image_accuracy", "blank_image_accuracy")
    },
    "SegmentationTask": {
        f"test/{name}" for name in ("miou", "miou_foreground", "dice", "boundary_iou", "loss")
    },
}
BEAM_SEARCH = {"ScenesDataModule", "CaptionDataModule", "SequenceRecognitionTask"}
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")
each_config = pytest.mark.parametrize("config", CONFIGS, ids=[path.stem for path in CONFIGS])

# Configs with shards are left out: their data modules return the batches of the other configs.
SCORED = [
    pytest.param(config, id=config.stem, marks=[] if config.stem in TRAINED else pytest.mark.slow)
    for config in CONFIGS
    if not config.stem.endswith("_shards")
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in the layout of VISATTN_DATA, with random weights."""
    folder = tmp_path_factory.mktemp("data")
    paths = write_caption_data(folder / "flickr8k", photos=7, size=64)
    write_caption_shards(folder / "shards" / "flickr8k", paths, "train", "validation")
    for path, name in (
        (paths.photos, "Images"),
        (paths.captions, "Flickr8k.token.txt"),
        (paths.train, "Flickr_8k.trainImages.txt"),
        (paths.validation, "Flickr_8k.devImages.txt"),
    ):
        path.rename(folder / "flickr8k" / name)
    coco = write_caption_data(folder / "coco", photos=7, size=64, format="karpathy")
    coco.captions.rename(folder / "coco" / "dataset_coco.json")
    for photo in coco.photos.iterdir():
        photo.rename(folder / "coco" / photo.name)
    write_coco_instances(folder / "coco")
    for split in ("train", "val"):
        write_instances(folder / "coco", f"{split}2017", count=3)
        write_vqa(folder / "vqa2", split)
    (folder / "weights").mkdir()
    write_digits(folder)
    write_cifar(folder)
    for name in ("flowers", "imagenet"):
        write_photo_folders(folder / name, train=2, val=1)
    write_class_shards(folder / "shards" / "flowers", folder / "flowers")
    weights = timm.create_model("mobilenetv2_100", pad_type="same").state_dict()
    save_file(weights, folder / "weights" / "mobilenetv2_100.safetensors")
    return folder


@pytest.fixture(autouse=True)
def _use_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.setenv("VISATTN_DATA", str(shared))
    accept_test_cifar_files(monkeypatch)
    monkeypatch.chdir(tmp_path)


def class_path(config: Path, part: str = "data") -> str:
    return yaml.safe_load(config.read_text())[part]["class_path"]


def small_run(config: Path) -> list[str]:
    options = f"{SMALL[class_path(config)]} {SLOW_CPU.get(config.stem, '')}"
    return ["--config", str(config), *options.split(), *QUIET]


def test_each_class_is_trained() -> None:
    """A class that only new configs name, such as a new task, needs a config in TRAINED."""

    def class_names(text: str) -> set[str]:
        return {line.split()[-1] for line in text.splitlines() if "class_path" in line}

    every_class = set[str]().union(*(class_names(path.read_text()) for path in CONFIGS))
    trained = (class_names(path.read_text()) for path in CONFIGS if path.stem in TRAINED)
    elsewhere = {
        "CocoSegmentationDataModule",
        "CNNMLP",
        "CrossAttentionVQA",
        "HardAttentionTask",
        "KnowingWhenToLook",
        "MAC",
        "RelationNetwork",
        "SCSTTask",
        "ShardCaptionDataModule",
        "ShardClassificationDataModule",
        "torch.optim.Adam",
    }
    assert every_class - set[str]().union(*trained) <= elsewhere  # tests/training trains these


def test_config_list_is_not_empty() -> None:
    assert {"scenes_demo", "scenes_soft", "flickr8k_soft", "mnist_resnet_cbam", "stn_mnist"} <= {
        path.stem for path in CONFIGS
    }


def test_cifar_configs_differ_in_the_block_only() -> None:
    without_block: dict[str, object] = {}
    for config in (path for path in CONFIGS if path.stem.startswith("cifar10_resnet20_")):
        entries = yaml.safe_load(config.read_text())
        arguments = entries["model"]["init_args"]["classifier"]["init_args"]
        block = config.stem.rpartition("_")[2]
        assert arguments.pop("block", "none") == block
        without_block[block] = entries
    assert set(without_block) == {"none", "se", "eca", "cbam", "coordinate"}
    assert all(entries == without_block["none"] for entries in without_block.values())


def test_transformer_configs_differ_as_their_heads_say() -> None:
    configs = {name: settings(name) for name in ("vit_mnist", "vit_mnist_conv", "vit_cifar10")}
    configs["slvit"] = settings("vit_cifar10_slvit")
    changes: dict[str, dict[str, object]] = {
        "vit_mnist_conv": {"stem": "conv"},
        "slvit": {"stem": "shifted", "lsa": True},
    }
    for plain, other in (("vit_mnist", "vit_mnist_conv"), ("vit_cifar10", "slvit")):
        arguments = configs[plain]["model"]["init_args"]["classifier"]["init_args"]
        arguments.update(changes[other])
        assert configs[plain] == configs[other]


def test_unet_configs_differ_in_the_decoder_only() -> None:
    changes = {
        "gates": ({"block": "gate"}, {}),
        "supervised": ({"block": "gate"}, {"gate_loss_weight": 0.2}),
        "scse": ({"block": "scse", "block_kwargs": {"reduction": 16}}, {}),
    }
    for name, (network, task) in changes.items():
        plain, other = settings("scenes_unet_plain"), settings(f"scenes_unet_{name}")
        plain["model"]["init_args"].update(task)
        plain["model"]["init_args"]["segmenter"]["init_args"].update(network)
        assert plain == other


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("flickr8k_cider", "flickr8k_soft"),
        ("flickr8k_transformer_cider", "flickr8k_transformer"),
    ],
)
def test_scst_config_has_the_model_and_data_of_its_pretraining(name: str, before: str) -> None:
    scst, pretraining = settings(name), settings(before)
    assert scst["data"] == pretraining["data"]
    captioners = [config["model"]["init_args"]["captioner"] for config in (scst, pretraining)]
    assert captioners[0] == captioners[1]


@pytest.mark.parametrize(
    ("shards", "files"),
    [("flickr8k_shards", "flickr8k_soft"), ("flowers_shards", "flowers_mobilenetv2_cbam")],
)
def test_configs_of_shards_differ_in_their_data_paths_only(shards: str, files: str) -> None:
    configs = settings(shards), settings(files)
    for config in configs:
        config["data"].pop("class_path")
        for name in ("shards", "captions", "photos", "train", "val", "root"):
            config["data"]["init_args"].pop(name, None)
    assert configs[0] == configs[1]


def settings(name: str) -> Any:
    (path,) = (config for config in CONFIGS if config.stem == name)
    return yaml.safe_load(path.read_text())


@each_config
def test_head_has_a_title_and_the_command(config: Path) -> None:
    title, command, *_ = config.read_text().splitlines()
    assert title.startswith("# ")
    assert len(title) > 30
    assert command.startswith(f"# visattn fit --config configs/{config.name}")


@pytest.mark.parametrize(
    "config",
    [config for config in CONFIGS if config.stem not in TRAINED],
    ids=lambda path: path.stem,
)
def test_dry_run_reads_a_batch_and_writes_nothing(config: Path, tmp_path: Path) -> None:
    assert main(["fit", *small_run(config), "--dry-run"]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@each_config
def test_fast_dev_run_writes_only_cached_features(config: Path, tmp_path: Path) -> None:
    assert main(["fit", *small_run(config), "--trainer.fast_dev_run", "1"]) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"features"}


@pytest.mark.parametrize("config", SCORED)
def test_config_is_trained_and_tested_with_the_same_arguments(config: Path, tmp_path: Path) -> None:
    """Train two steps, then test: the checkpoint has the averaged weights, and they are loaded."""
    arguments = small_run(config)
    steps = "--trainer.max_steps 2 --trainer.val_check_interval 1 --trainer.log_every_n_steps 1"
    assert main(["fit", *arguments, *steps.split(), "--run", str(tmp_path / "run")]) == 0
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    saved, model = torch.load(last), read_model(last)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(saved["state_dict"][name], tensor) for name, tensor in weights.items())
    averaged = bool(re.search(r"class_path: \S*EMA", config.read_text()))
    assert averaged == ("current_model_state" in saved)
    if averaged:
        moving = saved["current_model_state"]
        assert any(not torch.equal(moving[name], tensor) for name, tensor in weights.items())
    task = class_path(config, "model")
    searches = not BEAM_SEARCH.isdisjoint({task, class_path(config)})
    beam = ["--model.beam_size", "1"] if searches else []
    assert main(["test", *arguments, "--ckpt_path", str(last), *beam]) == 0
    scores = yaml.safe_load((tmp_path / "run" / "test.json").read_text())
    assert TEST_METRICS[task if task in TEST_METRICS else class_path(config)] <= set(scores)
