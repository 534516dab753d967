"""Every config has a head, and is parsed, as are variants; test_config_runs.py trains."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from config_runs import (
    CONFIGS,
    TRAINED,
    VARIANTS,
    Recipe,
    last_of_each,
    small_run as small_run_of_net,
)

from visattn.cli import main

# Scores over so few photos come with a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning"),
    pytest.mark.usefixtures("small_data"),
]
RECIPES = [*CONFIGS, *VARIANTS]


def test_scst_config_has_the_model_and_data_of_its_pretraining() -> None:
    scst, pretraining = settings("flickr8k_cider"), settings("flickr8k_soft")
    assert scst["data"] == pretraining["data"]
    captioners = [config["model"]["init_args"]["captioner"] for config in (scst, pretraining)]
    assert captioners[0] == captioners[1]


def small_run(recipe: Recipe) -> list[str]:
    small: list[str] = []
    if recipe.source() == "CaptionFile":
        small = ["--model.captioner.encoder.img_size=[64,64]"]
        small += ["--model.captioner.encoder.name=resnet18"] if "coco" in recipe.name else []
    return last_of_each([*small_run_of_net(recipe), *small])


def settings(name: str) -> Any:
    (path,) = (recipe.config for recipe in CONFIGS if recipe.name == name)
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("config", CONFIGS, ids=[each.name for each in CONFIGS])
def test_head_has_a_title_and_the_command(config: Recipe) -> None:
    title, command, *_ = config.config.read_text().splitlines()
    assert title.startswith("# ")
    assert len(title) > 30
    assert command.startswith(f"# visattn fit --config configs/{config.name}.yaml")


@pytest.mark.parametrize(
    "recipe",
    [recipe for recipe in RECIPES if recipe.name not in TRAINED],
    ids=lambda recipe: recipe.name,
)
def test_dry_run_reads_a_batch_and_writes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    assert main(["fit", *small_run(recipe), "--dry-run"]) == 0
    assert list(tmp_path.iterdir()) == []
