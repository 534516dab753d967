"""The glimpse task on several labels per image: errors, targets, supervision, resuming."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from classification_data import write_digits
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.classification.datasets import LabeledBatch
from visattn.data.classification.digit_sequences import (
    DigitCanvases,
    DigitSequenceBatch,
    DigitSequences,
    DigitSequenceSpec,
)
from visattn.models.glimpses.dram import DRAM
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.saving import load
from visattn.results.kinds import IGNORE_LABEL, Split
from visattn.training.glimpses.evaluation import GlimpseErrors, digit_scanpaths
from visattn.training.glimpses.losses import label_targets
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.optim import OptimConfig
from visattn.training.sequences.data import SequenceData


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, train=41, test=13)
    return folder


def digits(root: Path, size: tuple[int, int] = (47, 79), **options: Any) -> SequenceData:
    canvas = ClutterSpec(size)
    spec = DigitSequenceSpec("scattered", canvas, **{"max_digits": 2, **options})
    return SequenceData(DigitCanvases(str(root), spec, val=11), batch_size=5, num_workers=0)


def drawn(data: SequenceData, split: Split, count: int) -> DigitSequenceBatch:
    samples = data.samples(split)
    assert isinstance(samples, DigitSequences)
    return samples.draw(list(range(count)))


def build_task(
    data: SequenceData, model: dict[str, Any] | None = None, **options: Any
) -> GlimpseTask:
    def build(class_names: list[str]) -> DRAM:
        settings = {
            "end_class": "end", "num_glimpses_per_object": 2, "glimpse_size": 5, "hidden_size": 11,
            "what_dim": 7, "where_dim": 3, "context_size": 6, **(model or {}),
        }  # fmt: skip
        return DRAM(class_names, (47, 79), [0.1], [0.3], **settings)

    torch.manual_seed(0)
    return GlimpseTask(build, data.data_info, **options)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    settings = {"max_epochs": 1, "logger": False, "num_sanity_val_steps": 0, **options}
    return Trainer(
        default_root_dir=folder, accelerator="cpu", callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        enable_checkpointing=saves, log_every_n_steps=1, **settings,
    )  # fmt: skip


def test_sequence_error_matches_a_loop() -> None:
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


def test_targets_end_with_the_end_class(root: Path) -> None:
    labels = torch.tensor([[7, 2], [1, IGNORE_LABEL]])
    model = build_task(digits(root)).model
    assert label_targets(model, labels).tolist() == [[7, 2, 10], [1, 10, IGNORE_LABEL]]
    plain = build_task(digits(root), {"end_class": None}).model
    assert torch.equal(label_targets(plain, labels[:1]), labels[:1])
    with pytest.raises(ValueError, match="different numbers of labels, at most 2: set end_class"):
        label_targets(plain, labels)


def test_model_and_data_must_have_as_many_labels(root: Path) -> None:
    with pytest.raises(ValueError, match=r"up to 3 labels per image.*reads 2: use DRAM with max"):
        build_task(digits(root, (60, 100), max_digits=3))
    with pytest.raises(ValueError, match=r"up to 1 label per image.*reads 2.*max_objects=1"):
        build_task(digits(root, target="addition"))
    with pytest.raises(ValueError, match="reads 1: use DRAM with max_objects=2"):
        GlimpseTask(
            lambda names: RecurrentAttentionModel(names, (47, 79), [0.1], [0.3]),
            digits(root).data_info,
        )


@pytest.mark.parametrize("target", ["sequence", "addition"])
def test_errors_are_those_of_whole_sequences(root: Path, target: Any, tmp_path: Path) -> None:
    """Of the greedy policy, and of all controls."""
    data = digits(root, target=target)
    model = {} if target == "sequence" else {"max_objects": 1, "end_class": None}
    task = build_task(data, model, num_eval_samples=2)
    (scores,) = trainer(tmp_path).test(task, data, verbose=False)
    batch = drawn(data, "test", 13)
    labels, logits = label_targets(task.model, batch.labels), task.model.eval()(batch.images)
    logits = logits.detach().view(13, labels.shape[1], -1)
    wrong = (logits.argmax(-1) != labels) & (labels != IGNORE_LABEL)
    assert scores["test/error"] == pytest.approx(float(wrong.any(1).double().mean()))
    present = labels != IGNORE_LABEL
    loss = torch.nn.functional.cross_entropy(logits[present], labels[present])
    assert scores["test/loss"] == pytest.approx(float(loss), rel=1e-5)
    count = task.model.num_glimpses
    assert set(scores) == {
        "test/error", "test/error_random", "test/error_raster", "test/error_centered",
        "test/error_sampled", f"test/error_averaged_2x{count}_glimpses", "test/loss",
    }  # fmt: skip
    assert all(len(errors) == count for errors in task.notes["test_error_per_glimpse"].values())
    assert ("chance" in task.notes) == (target == "addition")
    path = digit_scanpaths(task.model, batch)
    centered = task.model.rollout(task.model.normalize(batch.images), locations=path).logits[
        :, 0, 1::2
    ]
    if target == "sequence":
        missed = ((centered.argmax(-1) != labels) & present).any(1)
        assert scores["test/error_centered"] == pytest.approx(float(missed.double().mean()))


def test_scanpaths_over_digits(root: Path) -> None:
    batch = drawn(digits(root), "test", 13)
    path, centers = digit_scanpaths(build_task(digits(root)).model, batch), batch.centers
    for image, count in enumerate(batch.num_digits.tolist()):
        digit_of_glimpse = [0, 0, count - 1, count - 1, count - 1, count - 1]
        assert torch.equal(path[image], centers[image, digit_of_glimpse]), image
    assert set(batch.num_digits.tolist()) == {1, 2}


class Rollouts(Callback):
    """Keeps the rollouts of training steps."""

    def __init__(self, task: GlimpseTask, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        rollout = task.model.rollout
        monkeypatch.setattr(task.model, "rollout", lambda *a, **o: self._keep(rollout(*a, **o), o))

    def _keep(self, result: Any, options: dict[str, Any]) -> Any:
        self.calls.append((result, options))
        return result


def test_supervised_epochs_look_around_the_digits_and_teach_the_policy(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits(root)
    task = build_task(
        data,
        supervised_location_epochs=1,
        optim=OptimConfig(schedule="cosine", lr_mults={"policy": 10.0}),
    )
    rollouts = Rollouts(task, monkeypatch)
    batch = drawn(data, "train", 30)
    path = digit_scanpaths(task.model, batch)

    def distance() -> float:
        images = task.model.normalize(batch.images)
        means = task.model.rollout(images, samples=path[:, None]).policy_means[:, 0]
        return float((means - path).norm(dim=-1).mean().detach())

    before = distance()
    trainer(tmp_path, max_epochs=2, limit_val_batches=0).fit(task, data)
    supervised, free = rollouts.calls[1:7], rollouts.calls[7:13]
    for rollout, options in supervised:
        assert "samples" in options
        offsets = rollout.policy_samples - rollout.policy_samples.mean()
        assert offsets.std() > 0.1
    assert all("samples" not in options for _, options in free)
    assert len(free) == 6
    assert distance() < before


def test_supervised_policy_loss_is_the_density_of_the_centers(root: Path) -> None:
    data = digits(root)
    task = build_task(data, {"policy_std": 0.3})
    batch = drawn(data, "train", 7)
    path = digit_scanpaths(task.model, batch)
    rollout, losses = task.supervised_losses(
        task.model.normalize(batch.images), batch, torch.zeros(7, 1, 6, 2)
    )
    torch.testing.assert_close(rollout.policy_samples, path[:, None])
    squares = (rollout.policy_means[:, 0] - path).square().sum(-1) / (2 * 0.3**2)
    expected = (squares + 2 * math.log(0.3) + math.log(2 * math.pi)).sum(1).mean()
    torch.testing.assert_close(losses.policy, expected)


def test_supervision_needs_centers() -> None:
    task = GlimpseTask(
        lambda names: RecurrentAttentionModel(names, (9, 7), [0.1], [0.3], glimpse_size=3),
        {"class_names": ["a", "b"]},
        supervised_location_epochs=1,
    )
    batch = LabeledBatch(torch.zeros(2, 1, 9, 7, dtype=torch.uint8), torch.zeros(2).long())
    with pytest.raises(TypeError, match="data that know the centers.*of type LabeledBatch"):
        task.supervised_losses(batch.images.float(), batch, torch.zeros(2, 1, 6, 2))


class Interrupt(Callback):
    """Interrupts the second epoch."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_resumed_run_is_bit_identical(root: Path, tmp_path: Path) -> None:
    """A supervised epoch, then one with REINFORCE, in one go or in two."""

    def build(seed: int) -> GlimpseTask:
        task = build_task(
            digits(root), num_rollouts=2, baseline="leave_one_out",
            supervised_location_epochs=1, reward="gain", backprop_policy_to_core=True,
            final_std=0.05,
        )  # fmt: skip
        seed_everything(seed)
        return task

    whole = build(5)
    trainer(tmp_path, max_epochs=2).fit(whole, digits(root))
    saver = ModelCheckpoint(
        tmp_path, "last", enable_version_counter=False, save_on_train_epoch_end=False
    )
    with pytest.raises(SystemExit):
        trainer(tmp_path, saver, Interrupt(), max_epochs=2).fit(build(5), digits(root))
    again = build(99)
    trainer(tmp_path, max_epochs=2).fit(again, digits(root), ckpt_path=tmp_path / "last.ckpt")
    expected, actual = whole.state_dict(), again.state_dict()
    assert again.trainer.global_step == whole.trainer.global_step == 12
    assert [name for name, value in expected.items() if not torch.equal(value, actual[name])] == []
    images = drawn(digits(root), "test", 3).images
    restored = load(tmp_path / "last.ckpt")
    assert isinstance(restored, DRAM)
    assert restored(images).shape == (3, 3, 11)
