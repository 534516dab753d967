"""First losses of every config and variant; the checkpoint of that run is tested."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from config_runs import CONFIGS, VARIANTS, Recipe, last_of_each, small_run, use_small_data
from task_runs import LOSSES

from visattn.cli import main
from visattn.models.saving import load

# Metrics that a test must have, by task or, for captions, by data module.
TEST_METRICS = {
    "SceneCaptions": "test/caption_accuracy novel/caption_accuracy shuffled/caption_accuracy "
    "untrained/caption_accuracy",
    "CaptionFile": "test/bleu-4 test/cider-d shuffled/cider-d teacher_forced/lift",
    "ClassificationTask": "test/accuracy test/balanced_accuracy test/worst_class_accuracy "
    "test/calibration_error",
    "DetectionTask": "test/AP test/AP50 test/AP_small test/pointing_game test/other_query "
    "test/loss",
    "GlimpseTask": "test/error test/error_random test/error_raster test/loss",
    "SequenceRecognitionTask": "test/sequence_error test/digit_error test/pointing_game test/loss",
    "QuestionTask": "test/mean_accuracy test/majority test/other_image_accuracy "
    "test/blank_image_accuracy",
    "SegmentationTask": "test/miou test/miou_foreground test/dice test/loss",
}
# One of each task is in the short run.
SHORT = {
    "cifar10_resnet20", "coco_detr", "flickr8k_soft", "ram_scenes", "read_digits", "scenes_unet",
    "vqa2_cross",
}  # fmt: skip
STEPS = 20
KEPT = Path(__file__).parent / "kept" / "losses"
# Rounding grows with each step, of some networks to other trainings: later losses are compared on
# the machine that wrote them, and computed only to be written or compared there, digit by digit.
EXACT = bool(os.environ.get("VISATTN_NET_EXACT"))
FIRST, TOLERANCE = 2, 1e-2
LOGGED = (
    "--trainer.callbacks+=task_runs.LossLog --trainer.check_val_every_n_epoch=null"
    f" --trainer.max_steps={STEPS} --trainer.max_epochs={STEPS} --trainer.log_every_n_steps=1"
)
# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")


class Fitted(NamedTuple):
    """A config that was trained, and what came of it."""

    recipe: Recipe
    arguments: list[str]
    folder: Path
    losses: list[float]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id=each.name, marks=[] if each.name in SHORT else pytest.mark.slow)
        for each in (*CONFIGS, *VARIANTS)
    ],
)
def fitted(
    request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fitted]:
    """A run of a config, in whose folder the tests run; validated after its last step."""
    recipe: Recipe = request.param
    folder = tmp_path_factory.mktemp("fitted")
    # The schedule of the learning rate follows max_steps, so the run is stopped, not shortened.
    steps = STEPS if EXACT or request.config.getoption("--write-golden") else FIRST
    ends = [f"--trainer.callbacks.last={steps}", f"--trainer.val_check_interval={steps}"]
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch, shared, folder)
        words = last_of_each([*small_run(recipe), *LOGGED.split(), *ends])
        assert main(["fit", *words, "--run", str(folder / "run")]) == 0
        yield Fitted(recipe, small_run(recipe), folder / "run", list(LOSSES))


def test_first_losses(fitted: Fitted, request: pytest.FixtureRequest) -> None:
    losses = [float(f"{loss:.7g}") for loss in fitted.losses]
    first, later, path = losses[:FIRST], losses[FIRST:], KEPT / f"{fitted.recipe.name}.json"
    if request.config.getoption("--write-golden"):
        path.write_text(f'{{\n"first": {first},\n"later": {later}\n}}\n')
    kept = json.loads(path.read_text())
    if EXACT:
        assert kept == {"first": first, "later": later}
    largest = np.abs(kept["first"]).max()
    np.testing.assert_allclose(first, kept["first"], rtol=0, atol=TOLERANCE * largest)


def test_config_is_tested_with_the_arguments_of_its_training(fitted: Fitted) -> None:
    """The checkpoint has the averaged weights, and they are loaded."""
    recipe, arguments, run, _ = fitted
    last = run / "checkpoints" / "last.ckpt"
    saved, model = torch.load(last), load(last)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(saved["state_dict"][name], tensor) for name, tensor in weights.items())
    averaged = bool(re.search(r"class_path: \S*EMA", recipe.config.read_text()))
    assert averaged == ("current_model_state" in saved)
    if averaged:
        moving = saved["current_model_state"]
        assert any(not torch.equal(moving[name], tensor) for name, tensor in weights.items())
    assert main(["test", *arguments, "--ckpt_path", str(last)]) == 0
    scores = yaml.safe_load((run / "test.json").read_text())
    expected = TEST_METRICS.get(recipe.class_path("model")) or TEST_METRICS[recipe.source()]
    without_phrases = {"teacher_forced/lift"} if recipe.name.startswith("coco") else set[str]()
    assert {*expected.split()} - without_phrases <= set(scores)
