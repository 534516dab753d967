"""The glimpse task: parts, schedules, logs, scores of single labels and sequences, supervision."""

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from classification_data import write_digits
from lightning import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from task_runs import small_trainer

from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.classification.datasets import LabeledBatch
from visattn.data.classification.digit_sequences import (
    DigitCanvases,
    DigitSequenceBatch,
    DigitSequences,
    DigitSequenceSpec,
)
from visattn.data.source import Source
from visattn.models.glimpses.dram import DRAM
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.results.kinds import IGNORE_LABEL, Split
from visattn.training.classification.data import ClassificationData
from visattn.training.glimpses.evaluation import GlimpseErrors, digit_scanpaths
from visattn.training.glimpses.losses import label_targets
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.optim import OptimConfig
from visattn.training.sequences.data import SequenceData

SMALL: dict[str, Any] = {
    "glimpse_size": 3,
    "num_glimpses": 4,
    "hidden_size": 11,
    "what_dim": 7,
    "where_dim": 5,
}


# ---------------------------------------------------------------- a label per image


class Recorded(list[Any]):
    """A list that records what is read."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.read: list[int] = []

    def __getitem__(self, number: Any) -> Any:
        self.read.append(number)
        return super().__getitem__(number)


class Rows(Source):
    """Noise images in three classes; the brightest row is the class."""

    class_names = ("low", "middle", "high")

    def __init__(self) -> None:
        self.opened: list[Split] = []

    def __call__(self, split: Split) -> Recorded:
        self.opened.append(split)
        count = {"train": 20, "validation": 7, "test": 11}[split]
        random = torch.Generator().manual_seed(len(split))
        images = torch.randint(128, (count, 1, 9, 7), dtype=torch.uint8, generator=random)
        for number, image in enumerate(images):
            image[0, 3 * (number % 3)] = 255
        return Recorded([(image, number % 3) for number, image in enumerate(images)])


def rows() -> Any:
    data = ClassificationData(Rows(), batch_size=5, num_workers=0, seed=3)
    data.eval_batch_size = 5
    return data


def build_task(model: dict[str, Any] | None = None, **options: Any) -> GlimpseTask:
    def build(names: list[str]) -> RecurrentAttentionModel:
        settings: dict[str, Any] = {**SMALL, **(model or {})}
        return RecurrentAttentionModel(names, (9, 7), [0.3], [0.3], **settings)

    torch.manual_seed(0)
    return GlimpseTask(build, {"class_names": list(Rows.class_names)}, **options)


def test_each_parameter_is_in_its_part() -> None:
    task = build_task()
    parts = {id(weight): part for part, weights in task.parts().items() for weight in weights}
    for name, _ in task.named_parameters():
        part = next((part for part in ("baseline", "policy") if part in name), "core")
        assert parts.pop(id(task.get_parameter(name))) == part, name
    assert not parts


def test_the_policy_is_logged_and_its_std_decays_linearly_in_the_logarithm(tmp_path: Path) -> None:
    task = build_task({"policy_std": 0.4}, num_rollouts=3, final_std=0.1)
    logger = CSVLogger(tmp_path)
    small_trainer(tmp_path, logger=logger, max_epochs=2, limit_train_batches=1).fit(task, rows())
    lines = (Path(str(logger.log_dir)) / "metrics.csv").read_text().splitlines()
    logged = [row for row in csv.DictReader(lines) if row["policy/std"]]
    assert [int(row["step"]) for row in logged] == [0, 1]
    names = {"reward", "explained_variance", "std", "mean_std", "baseline_loss"}
    for row in logged:
        expected = 0.4 * (0.1 / 0.4) ** (int(row["step"]) / 2)
        assert float(row["policy/std"]) == pytest.approx(expected, rel=1e-5)
        values = [float(row[f"policy/{name}"]) for name in names] + [float(row["train/loss"])]
        assert all(map(math.isfinite, values))


@pytest.mark.parametrize("reaches", [False, True])
def test_rollouts_follow_from_the_step_and_policies_train_the_core_if_asked(
    tmp_path: Path, reaches: bool
) -> None:
    task = build_task(num_rollouts=3, backprop_policy_to_core=reaches)
    task.trainer = small_trainer(tmp_path)
    images = torch.rand(2, 1, 9, 7)
    first, second = task._sample_rollout(images), task._sample_rollout(images)
    assert torch.equal(first.locations, second.locations)
    assert len(first.locations[:, :, 0].flatten(0, 1).unique(dim=0)) == 6  # of all rollouts
    assert (first.policy_samples != first.policy_means).all()
    first.policy_means.sum().backward()
    assert any(each.grad is not None for each in task.model.rnn.parameters()) == reaches


def test_scores_are_the_same_in_every_run_and_read_each_image_once(tmp_path: Path) -> None:
    task, results = build_task(num_eval_starts=2, num_eval_samples=3), []
    for seed in (1, 2):
        seed_everything(seed)
        data = rows()
        (scores,) = small_trainer(tmp_path).test(task, data, verbose=False)
        assert data.source.opened == ["test"]
        assert sorted(data.samples("test").read) == list(range(11))
        results.append((scores, task.notes))
    assert results[0] == results[1]
    scores, notes = results[0]
    errors = ("error", "error_random", "error_raster", "error_sampled")
    assert set(scores) == {
        f"test/{name}" for name in (*errors, "error_averaged_3x4_glimpses", "loss")
    }
    per_glimpse = notes["test_error_per_glimpse"]
    assert set(per_glimpse) == {"greedy", "random", "raster", "sampled", "averaged"}
    assert per_glimpse["greedy"][-1] == pytest.approx(scores["test/error"])
    assert per_glimpse["averaged"][-1] == pytest.approx(scores["test/error_averaged_3x4_glimpses"])
    data = rows()
    small_trainer(tmp_path, max_steps=1).fit(task, data)
    assert "test" not in data.source.opened


def test_the_weights_of_another_run_leave_the_options_of_the_task(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    first = build_task({"policy_std": 0.5})
    small_trainer(tmp_path, saver, enable_checkpointing=True, max_steps=2).fit(first, rows())
    task = build_task({"policy_std": 0.25}, baseline="learned")
    own = {name: value.clone() for name, value in task.value_baseline.state_dict().items()}
    task.initialize(tmp_path / "last.ckpt")
    weights = task.model.state_dict()
    assert float(weights.pop("policy.log_std").exp()) == 0.25
    for name, value in weights.items():
        assert torch.equal(value, first.model.state_dict()[name]), name
    for name, value in task.value_baseline.state_dict().items():
        assert torch.equal(value, own[name]), name


# ---------------------------------------------------------------- several labels per image


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, train=41, test=13)
    return folder


def digits(root: Path, size: tuple[int, int] = (47, 79), **options: Any) -> SequenceData:
    spec = DigitSequenceSpec("scattered", ClutterSpec(size), **{"max_digits": 2, **options})
    return SequenceData(DigitCanvases(str(root), spec=spec, val=11), batch_size=5, num_workers=0)


def drawn(data: SequenceData, split: Split, count: int) -> DigitSequenceBatch:
    samples = data.samples(split)
    assert isinstance(samples, DigitSequences)
    return samples.draw(list(range(count)))


def reader(data: SequenceData, model: dict[str, Any] | None = None, **options: Any) -> GlimpseTask:
    def build(names: list[str]) -> DRAM:
        settings = {
            "end_class": "end", "num_glimpses_per_object": 2, "glimpse_size": 5, "hidden_size": 11,
            "what_dim": 7, "where_dim": 3, "context_size": 6, **(model or {}),
        }  # fmt: skip
        return DRAM(names, (47, 79), [0.1], [0.3], **settings)

    torch.manual_seed(0)
    return GlimpseTask(build, data.data_info, **options)


def test_errors_of_sequences_and_glimpses_match_a_loop() -> None:
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(13, 6, 3, generator=random)
    labels = torch.randint(3, (13, 3), generator=random)
    scores[::3] += 9 * torch.nn.functional.one_hot(labels[::3].repeat_interleave(2, 1), 3)
    labels[::2, 2] = IGNORE_LABEL
    errors = GlimpseErrors(6)
    for part in (slice(0, 7), slice(7, 8), slice(8, 13)):
        errors.update(scores[part], labels[part])
    read = scores.argmax(-1).tolist()
    wrong, counts = 0, [[0, 0] for _ in range(6)]
    for image, true in enumerate(labels.tolist()):
        present = [label for label in range(3) if true[label] != IGNORE_LABEL]
        wrong += any(read[image][2 * label + 1] != true[label] for label in present)
        for label, step in itertools.product(present, range(2)):
            counts[2 * label + step][0] += read[image][2 * label + step] != true[label]
            counts[2 * label + step][1] += 1
    assert 0 < wrong < 13
    assert float(errors.compute()) == pytest.approx(wrong / 13)
    assert errors.per_glimpse().tolist() == pytest.approx([part / whole for part, whole in counts])


def test_targets_end_with_the_end_class_and_paths_lead_over_the_digits(root: Path) -> None:
    data = digits(root)
    model = reader(data).model
    labels = torch.tensor([[7, 2], [1, IGNORE_LABEL]])
    assert label_targets(model, labels).tolist() == [[7, 2, 10], [1, 10, IGNORE_LABEL]]
    batch = drawn(data, "test", 13)
    path = digit_scanpaths(model, batch)
    for image, count in enumerate(batch.num_digits.tolist()):
        digit_of_glimpse = [0, 0, count - 1, count - 1, count - 1, count - 1]
        assert torch.equal(path[image], batch.centers[image, digit_of_glimpse]), image
    assert set(batch.num_digits.tolist()) == {1, 2}


def test_models_that_do_not_fit_the_data_are_refused(root: Path) -> None:
    def single(**options: Any) -> GlimpseTask:
        info = {"class_names": ["a", "b"], **options.pop("info", {})}
        build = lambda names: RecurrentAttentionModel(names, (9, 7), [0.1], [0.3], **SMALL)  # noqa: E731
        return GlimpseTask(build, info, **options)

    photos = LabeledBatch(torch.zeros(2, 1, 9, 7, dtype=torch.uint8), torch.zeros(2).long())
    plain = reader(digits(root), {"end_class": None}).model
    cases: tuple[tuple[Any, type[Exception], str], ...] = (
        (lambda: reader(digits(root, (60, 100), max_digits=3)), ValueError,
         r"up to 3 labels per image.*reads 2: use DRAM with max"),
        (lambda: reader(digits(root, target="addition")), ValueError,
         r"up to 1 label per image.*reads 2.*max_objects=1"),
        (lambda: single(info={"max_length": 2}), ValueError, "reads 1: use DRAM with max_obj"),
        (lambda: label_targets(plain, torch.tensor([[7, 2], [1, IGNORE_LABEL]])), ValueError,
         "different numbers of labels, at most 2: set end_class"),
        (lambda: single(supervised_location_epochs=1).supervised_losses(
            photos.images.float(), photos, torch.zeros(2, 1, 4, 2)), TypeError,
         "data with the centers.*of type LabeledBatch"),
    )  # fmt: skip
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_errors_and_losses_are_those_of_whole_sequences(root: Path, tmp_path: Path) -> None:
    data = digits(root)
    task = reader(data)
    (scores,) = small_trainer(tmp_path).test(task, data, verbose=False)
    batch = drawn(data, "test", 13)
    labels, logits = label_targets(task.model, batch.labels), task.model.eval()(batch.images)
    logits = logits.detach().view(13, labels.shape[1], -1)
    present = labels != IGNORE_LABEL
    wrong = (logits.argmax(-1) != labels) & present
    assert scores["test/error"] == pytest.approx(float(wrong.any(1).double().mean()))
    loss = torch.nn.functional.cross_entropy(logits[present], labels[present])
    assert scores["test/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert "test/error_centered" in scores


def test_supervised_epochs_look_around_the_digits_and_teach_the_policy(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits(root)
    optim = OptimConfig(schedule="cosine", lr_mults={"policy": 10.0})
    task = reader(data, supervised_location_epochs=1, optim=optim)
    batch = drawn(data, "train", 30)
    path, images = digit_scanpaths(task.model, batch), task.model.normalize(batch.images)

    def distance() -> float:
        means = task.model.rollout(images, samples=path[:, None]).policy_means[:, 0]
        return float((means - path).norm(dim=-1).mean().detach())

    before, rollout, given = distance(), task.model.rollout, list[Any]()

    def watched(*args: Any, **options: Any) -> Any:
        given.append(options.get("samples"))
        return rollout(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(task.model, "rollout", watched)
        small_trainer(tmp_path, max_epochs=2, limit_train_batches=1, limit_val_batches=0).fit(
            task, data
        )
    assert given[0].std() > 0.1
    assert given[1:] == [None]
    assert distance() < before


def test_the_supervised_policy_loss_is_the_density_of_the_centers(root: Path) -> None:
    data = digits(root)
    task = reader(data, {"policy_std": 0.3})
    batch = drawn(data, "train", 7)
    path = digit_scanpaths(task.model, batch)
    images = task.model.normalize(batch.images)
    rollout, losses = task.supervised_losses(images, batch, torch.zeros(7, 1, 6, 2))
    torch.testing.assert_close(rollout.policy_samples, path[:, None])
    squares = (rollout.policy_means[:, 0] - path).square().sum(-1) / (2 * 0.3**2)
    expected = (squares + 2 * math.log(0.3) + math.log(2 * math.pi)).sum(1).mean()
    torch.testing.assert_close(losses.policy, expected)
