"""Every file of configs/ says what it is, parses, and trains."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from class_miniatures import (
    believe_miniatures,
    write_cifar,
    write_digits,
    write_photo_folders,
)
from miniatures import write_caption_data
from safetensors.torch import save_file
from shard_miniatures import write_caption_shards, write_class_shards

from visattn.cli import main
from visattn.training.checkpoint.reader import read_model

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
SMALL = {
    "ScenesDataModule": "--data.train=2 --data.validation=2 --data.test=2 --data.batch=3"
    " --data.workers=0",
    "CaptionDataModule": "--data.batch=2 --data.min_count=1 --data.cache=features",
    "ShardCaptionDataModule": "--data.shards=${VISATTN_DATA}/shards/flickr8k --data.batch=2"
    " --data.min_count=1 --data.cache=features",
    "ShardClassificationDataModule": "--data.shards=${VISATTN_DATA}/shards/flowers --data.batch=2",
    "TorchvisionDataModule": "--data.batch=2 --data.validation=3 --data.workers=0",
    "FolderDataModule": "--data.batch=2 --data.workers=0",
    "ClutteredMNISTDataModule": "--data.batch=2 --data.validation=3",
    "SingleObjectDataModule": "--data.train=4 --data.validation=3 --data.test=3 --data.batch=2",
}
# What one slow processor needs besides.
ALONE = {
    "cct_cifar10": "--trainer.precision=32-true --model.classifier.depth=2",
    "vit_imagenet": "--trainer.accelerator=cpu --trainer.devices=1 --trainer.strategy=auto"
    " --model.classifier.depth=1",
    "flickr8k_soft": "--model.captioner.encoder.size=[96,96]",
    "flowers_mobilenetv2_cbam": "--model.classifier.size=[96,96]",
}
# One of each task, model, data and callback; the others are built, and run with -m slow.
TRAINED = {
    "cifar10_resnet20_none", "flickr8k_soft", "flowers_mobilenetv2_cbam", "ram_scenes",
    "ram_translated60", "scenes_demo", "stn_mnist", "vit_cifar10",
}  # fmt: skip
# What a test must say, at the least, by task or, for captions, by data.
SCORED = {
    "ScenesDataModule": {"test/truth", "novel/truth", "shuffled/truth", "untrained/truth"},
    "CaptionDataModule": {"test/bleu-4", "test/cider-d", "shuffled/cider-d", "given/lift"},
    "ClassificationTask": {
        f"test/{name}" for name in ("accuracy", "balanced", "worst", "calibration")
    },
    "GlimpseTask": {f"test/{name}" for name in ("error", "error_random", "error_raster", "loss")},
}
SEARCHED = {"ScenesDataModule", "CaptionDataModule"}
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
# Seven photos say little, and the scores say so.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")
each = pytest.mark.parametrize("config", CONFIGS, ids=[path.stem for path in CONFIGS])

# Those of shards differ from others in where the photos lie, and data modules give the same.
SCORED_TOO = [
    pytest.param(config, id=config.stem, marks=[] if config.stem in TRAINED else pytest.mark.slow)
    for config in CONFIGS
    if not config.stem.endswith("_shards")
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature of the data that VISATTN_DATA names, with weights that know nothing."""
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
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.setenv("VISATTN_DATA", str(shared))
    believe_miniatures(monkeypatch)
    monkeypatch.chdir(tmp_path)


def kind(config: Path, part: str = "data") -> str:
    return yaml.safe_load(config.read_text())[part]["class_path"]


def small(config: Path) -> list[str]:
    options = f"{SMALL[kind(config)]} {ALONE.get(config.stem, '')}"
    return ["--config", str(config), *options.split(), *QUIET]


def test_each_kind_is_trained() -> None:
    """What no config that is trained here names, such as a new task, needs one that is."""

    def named(text: str) -> set[str]:
        return {line.split()[-1] for line in text.splitlines() if "class_path" in line}

    everything = set[str]().union(*(named(path.read_text()) for path in CONFIGS))
    trained = (named(path.read_text()) for path in CONFIGS if path.stem in TRAINED)
    elsewhere = {
        "SCSTTask",
        "ShardCaptionDataModule",
        "ShardClassificationDataModule",
        "torch.optim.Adam",
    }
    assert everything - set[str]().union(*trained) <= elsewhere  # tests/tasks trains these


def test_there_are_configs() -> None:
    assert {"scenes_demo", "scenes_soft", "flickr8k_soft", "mnist_resnet_cbam", "stn_mnist"} <= {
        path.stem for path in CONFIGS
    }


def test_the_cifar_configs_differ_in_the_block_alone() -> None:
    plain: dict[str, object] = {}
    for config in (path for path in CONFIGS if path.stem.startswith("cifar10_resnet20_")):
        asked = yaml.safe_load(config.read_text())
        arguments = asked["model"]["init_args"]["classifier"]["init_args"]
        named = config.stem.rpartition("_")[2]
        assert arguments.pop("block", "none") == named
        plain[named] = asked
    assert set(plain) == {"none", "se", "eca", "cbam", "coordinate"}
    assert all(asked == plain["none"] for asked in plain.values())


def test_transformers_for_small_images_differ_in_what_their_heads_say() -> None:
    asked = {name: settings(name) for name in ("vit_mnist", "vit_mnist_conv", "vit_cifar10")}
    asked["slvit"] = settings("vit_cifar10_slvit")
    changes: dict[str, dict[str, object]] = {
        "vit_mnist_conv": {"stem": "conv"},
        "slvit": {"stem": "shifted", "locality": True},
    }
    for plain, other in (("vit_mnist", "vit_mnist_conv"), ("vit_cifar10", "slvit")):
        arguments = asked[plain]["model"]["init_args"]["classifier"]["init_args"]
        arguments.update(changes[other])
        assert asked[plain] == asked[other]


def test_training_on_the_score_goes_on_from_what_was_trained_before() -> None:
    ours, theirs = settings("flickr8k_cider"), settings("flickr8k_soft")
    assert ours["data"] == theirs["data"]
    models = [one["model"]["init_args"]["captioner"] for one in (ours, theirs)]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("sharded", "loose"),
    [("flickr8k_shards", "flickr8k_soft"), ("flowers_shards", "flowers_mobilenetv2_cbam")],
)
def test_configs_of_shards_differ_in_where_the_photos_lie(sharded: str, loose: str) -> None:
    ours, theirs = settings(sharded), settings(loose)
    for one in (ours, theirs):
        one["data"].pop("class_path")
        for name in ("shards", "captions", "photos", "train", "validation", "root"):
            one["data"]["init_args"].pop(name, None)
    assert ours == theirs


def settings(name: str) -> Any:
    (path,) = (config for config in CONFIGS if config.stem == name)
    return yaml.safe_load(path.read_text())


@each
def test_a_config_says_what_it_is_and_how_it_is_run(config: Path) -> None:
    what, how, *_ = config.read_text().splitlines()
    assert what.startswith("# ")
    assert len(what) > 30
    assert how.startswith(f"# visattn fit --config configs/{config.name}")


@pytest.mark.parametrize(
    "config",
    [config for config in CONFIGS if config.stem not in TRAINED],
    ids=lambda path: path.stem,
)
def test_a_config_is_built_and_reads_a_batch(config: Path, tmp_path: Path) -> None:
    assert main(["fit", *small(config), "--dry-run"]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@each
def test_a_config_runs_one_batch(config: Path, tmp_path: Path) -> None:
    assert main(["fit", *small(config), "--trainer.fast_dev_run", "1"]) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"features"}  # it leaves nothing else


@pytest.mark.parametrize("config", SCORED_TOO)
def test_a_config_is_scored_with_the_words_that_trained_it(config: Path, tmp_path: Path) -> None:
    """Two steps, then test: averaged weights are what is kept, and what comes back."""
    words = small(config)
    steps = "--trainer.max_steps 2 --trainer.val_check_interval 1 --trainer.log_every_n_steps 1"
    assert main(["fit", *words, *steps.split(), "--run", str(tmp_path / "run")]) == 0
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    saved, model = torch.load(last), read_model(last)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(saved["state_dict"][name], tensor) for name, tensor in weights.items())
    averaged = "WeightAverag" in config.read_text()
    assert averaged == ("current_model_state" in saved)
    if averaged:
        moving = saved["current_model_state"]
        assert any(not torch.equal(moving[name], tensor) for name, tensor in weights.items())
    beam = ["--model.beam", "1"] if kind(config) in SEARCHED else []
    assert main(["test", *words, "--ckpt_path", str(last), *beam]) == 0
    scores = yaml.safe_load((tmp_path / "run" / "test.json").read_text())
    task = kind(config, "model")
    assert SCORED[task if task in SCORED else kind(config)] <= set(scores)
