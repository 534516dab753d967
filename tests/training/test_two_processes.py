"""Two processes learn what one does that sees both their batches, and count nothing twice."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rank_stories import tell, tell_in_two
from told_tasks import write_tasks

from visattn.training.checkpoint.reader import read_checkpoint

# Eleven photos say little, and the scores say so; self-critical training leaves out dropout.
pytestmark = [
    pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning"),
    pytest.mark.filterwarnings("ignore:Found .* in eval mode"),
]
BATCHES = {"digits": 6, "shapes": 6, "captions": 6, "critical": 4, "glimpses": 8}


class Told(NamedTuple):
    """Tasks that one process told (in the folder `one`), and two (in `two`)."""

    folder: Path
    learned: tuple[str, ...]
    """Those that were trained by both."""
    scored: tuple[tuple[str, str], ...]
    """Those that one process trained and both scored, and how."""

    def diaries(self, name: str) -> list[dict[str, Any]]:
        """Return what the one process saw in training, then what each of the two did."""
        paths = [*sorted(self.folder.glob(f"one/{name}/diary/*.json"))]
        paths += sorted(self.folder.glob(f"two/{name}/diary/*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def weights(self, folder: str, name: str) -> dict[str, torch.Tensor]:
        saved = read_checkpoint(self.folder / folder / name / "checkpoints" / "last.ckpt")
        return {key: value.double() for key, value in saved["state_dict"].items()}

    def scores(self, folder: str, name: str, word: str) -> dict[str, float]:
        path = self.folder / folder / "scored" / name / f"{word}.json"
        found = json.loads(path.read_text())
        told = {key: math.nan if value is None else value for key, value in found.items()}
        return {key: value for key, value in told.items() if not isinstance(value, str)}


QUICK = Told(
    Path(),
    ("digits", "captions"),
    (("captions", "test"), ("glimpses", "test")),
)
MORE = Told(
    Path(),
    ("captions", "critical", "glimpses", "shapes"),
    (
        ("captions", "validate"), ("shapes", "validate"), ("shapes", "test"),
        ("glimpses", "validate"), ("scenes", "test"), ("scenes", "validate"),
    ),
)  # fmt: skip
SAID = {
    ("captions", "validate"): "val/bleu-4 val/cider-d val/correctness val_given/lift val/loss",
    ("captions", "test"): "test/cider-d given/correctness shuffled/cider-d shuffled_given/pointing"
    " untrained_given/lift untrained/cider-d test/lift given/phrases",
    ("glimpses", "test"): "test/error test/error_random test/error_averaged_2x3_glimpses test/loss",
    ("shapes", "test"): "test/accuracy test/worst test/calibration test/loss",
    ("scenes", "test"): "test/truth novel/truth given/correctness shuffled_given/lift"
    " shuffled/truth",
}


def fits(folder: str, names: tuple[str, ...], among: int) -> list[list[str]]:
    """How tasks are trained, each batch shared among so many processes."""
    starts = {"critical": ["--model.start", "one/captions/checkpoints/last.ckpt"]}
    steps = {"scenes": ["--trainer.max_steps", "2"]}
    return [
        [
            *["fit", "--config", f"{name}.yaml", "--run", f"{folder}/{name}"],
            *["--data.batch", str(BATCHES.get(name, 6) // among)],
            *starts.get(name, []),
            *steps.get(name, []),
        ]
        for name in names
    ]


def scorings(folder: str, scored: tuple[tuple[str, str], ...]) -> list[list[str]]:
    """How what one process trained is scored."""
    return [
        [
            *[word, "--config", f"{name}.yaml", "--run", f"{folder}/scored/{name}"],
            *["--ckpt_path", f"one/{name}/checkpoints/last.ckpt"],
        ]
        for name, word in scored
    ]


@pytest.fixture(
    scope="module",
    params=[QUICK, pytest.param(MORE, marks=pytest.mark.slow)],
    ids=["quick", "more"],
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("processes")
    write_tasks(folder)
    _, learned, scored = request.param
    alone = (*learned, *sorted({name for name, _ in scored} - set(learned)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["visattn"])
        patch.setenv("VISATTN_TRUST_MODULES", "run_diaries")
        tell([*fits("one", alone, 1), *scorings("one", scored)])
        tell_in_two([*fits("two", learned, 2), *scorings("two", scored)], folder)
    return Told(folder, learned, scored)


def test_two_processes_share_each_batch(told: Told) -> None:
    for name in told.learned:
        one, *two = (diary["trained"] for diary in told.diaries(name))
        assert len(one) >= 4, name
        for whole, half, other in zip(one, *two, strict=True):
            assert len(half) == len(other) == BATCHES[name] // 2, name
            assert sorted(half + other) == sorted(whole), name


def test_they_have_the_losses_of_one(told: Told) -> None:
    for name in told.learned:
        one, first, second = (diary["loss"] for diary in told.diaries(name))
        losses = [sum(pair) / 2 for pair in zip(first, second, strict=True)]
        assert losses == pytest.approx(one, rel=1e-5, abs=1e-5), name
        assert first != pytest.approx(second, rel=1e-3), name


def test_they_end_with_the_weights_of_one(told: Told) -> None:
    for name in told.learned:
        _, first, second = (diary["weights"] for diary in told.diaries(name))
        assert first == second, name
        one, two = (told.weights(folder, name) for folder in ("one", "two"))
        assert one.keys() == two.keys(), name
        far = {key: float((two[key] - value).abs().max()) for key, value in one.items()}
        assert max(far.values()) < 1e-5, (name, far)


def test_validation_samples_are_counted_once(told: Told) -> None:
    for name in told.learned:
        one, first, second = (
            [sample for batch in diary["validated"] for sample in batch]
            for diary in told.diaries(name)
        )
        assert len(one) == 2 * 11, name
        assert abs(len(first) - len(second)) == 2, name
        assert sorted(first + second) == sorted(one), name


def test_validation_in_training_scores_as_one_process_does(told: Told) -> None:
    for name in told.learned:
        one, *two = (diary["scores"] for diary in told.diaries(name))
        assert len(one) == 2, name
        for both in two:
            for alone, scores in zip(one, both, strict=True):
                assert scores == pytest.approx(alone, rel=1e-4, abs=1e-5, nan_ok=True), name


def test_eleven_samples_have_the_same_scores_on_two_processes(told: Told) -> None:
    for name, word in told.scored:
        one, two = (told.scores(folder, name, word) for folder in ("one", "two"))
        assert one.keys() == two.keys(), name
        assert set(SAID.get((name, word), "").split()) <= one.keys(), name
        assert two == pytest.approx(one, rel=1e-6, abs=1e-7, nan_ok=True), name


def test_each_photo_has_one_caption(told: Told) -> None:
    for name, word in told.scored:
        if name == "captions":
            key = "val" if word == "validate" else "test"
            path = told.folder / "two" / "scored" / name / f"{key}_captions.json"
            noted = json.loads(path.read_text())
            assert len(noted) == len({one["image_id"] for one in noted}) == 11
