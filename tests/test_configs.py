"""Every file of configs/ has a head and is parsed; tests/net/test_config_runs.py trains them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from classification_data import accept_test_cifar_files
from config_runs import (
    CONFIGS,
    TRAINED,
    class_path,
    small_run as small_run_of_net,
    write_shared_data,
)

from visattn.cli import main

THIN = {
    "TransformerCaptioner": "--model.captioner.embed_dim=24",
    "ShowAttendTell": "--model.captioner.embed_dim=8 --model.captioner.hidden_size=16"
    " --model.captioner.attention_dim=8",
}
THIN["KnowingWhenToLook"] = THIN["ShowAttendTell"]
"""Widths of captioners, which no test looks at."""
# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")
each_config = pytest.mark.parametrize("config", CONFIGS, ids=[path.stem for path in CONFIGS])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in the layout of VISATTN_DATA, with random weights."""
    folder = tmp_path_factory.mktemp("data")
    write_shared_data(folder)
    return folder


@pytest.fixture(autouse=True)
def _use_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.setenv("VISATTN_DATA", str(shared))
    accept_test_cifar_files(monkeypatch)
    monkeypatch.chdir(tmp_path)


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
        "RelaxedPlaces",
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


def small_run(config: Path) -> list[str]:
    cheaper: list[str] = []
    if captioner := settings(config.stem)["model"]["init_args"].get("captioner"):
        cheaper += THIN.get(captioner["class_path"], "").split()
    if class_path(config) == "CaptionDataModule":
        cheaper += ["--model.captioner.encoder.img_size=[64,64]"]
        cheaper += ["--model.captioner.encoder.name=resnet18"] if "coco" in config.stem else []
    replaced = {option.partition("=")[0] for option in cheaper}
    kept = [word for word in small_run_of_net(config) if word.partition("=")[0] not in replaced]
    return [*kept, *cheaper]


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
