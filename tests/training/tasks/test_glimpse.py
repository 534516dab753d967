"""Training a model that looks: rates, schedules, figures, and the same run with a break in it."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.optim import SGD

from visattn.data.classification.datasets import HeldImages, LabeledBatch, LabeledImages
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.training.callbacks.ema import EMA
from visattn.training.checkpoint.reader import read_model
from visattn.training.data.classification import ClassificationDataModule, Split
from visattn.training.tasks.glimpse import GlimpseTask

SIZES = {"train": 20, "validation": 7, "test": 11}


class Counted(HeldImages):
    """Small images that remember which of them were read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images, labels)
        self.read: list[int] = []

    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        self.read += numbers
        return super().__getitem__(numbers)


class Patches(ClassificationDataModule):
    """Images of noise in three classes; the brightest row tells the class."""

    evaluated_at_once = 5

    def __init__(self, batch: int = 5, augment: Any = None) -> None:
        super().__init__(augment, batch=batch, workers=0, seed=3)
        self.opened: list[Split] = []

    @property
    def data_info(self) -> dict[str, Any]:
        return {"classes": ["low", "middle", "high"]}

    def part(self, split: Split) -> LabeledImages:
        self.opened.append(split)
        count, random = SIZES[split], torch.Generator().manual_seed(len(split))
        images = torch.randint(128, (count, 1, 9, 7), dtype=torch.uint8, generator=random)
        labels = torch.arange(count) % 3
        for image, label in zip(images, labels.tolist(), strict=True):
            image[0, 3 * label] = 255
        made = Counted(images, labels)
        made.augmentations = self.augmentations if split == "train" else ()
        return made


def task(model: dict[str, Any] | None = None, **options: Any) -> GlimpseTask:
    def made(classes: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(
            classes, (9, 7), [0.3], [0.3],
            **{"glimpse": 3, "glimpses": 4, "width": 11, "what": 7, "where": 5, **(model or {})},
        )  # fmt: skip

    torch.manual_seed(0)
    return GlimpseTask(made, Patches().data_info, **options)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "logger": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
    }
    return Trainer(
        default_root_dir=folder, accelerator="cpu", callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        **{**settings, **options},
    )  # fmt: skip


class Diary(Callback):
    """What the policy is at the start of each step, and where it looks."""

    def __init__(self) -> None:
        self.spreads: list[float] = []
        self.policies: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        policy = pl_module.model.policy
        self.spreads.append(float(policy.spread.detach()))
        self.policies.append(policy.mean.weight.detach().clone())


# ---- what is trained, and at which rate


def optimized(made: GlimpseTask, monkeypatch: pytest.MonkeyPatch, steps: int = 100) -> Any:
    class Told:
        estimated_stepping_batches = steps

    monkeypatch.setattr(GlimpseTask, "trainer", Told())
    return made.configure_optimizers()


@pytest.mark.parametrize("start", ["random", "learned"])
@pytest.mark.parametrize("learn_spread", [False, True])
def test_each_part_has_its_rate(
    start: str, learn_spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task({"start": start, "learn_spread": learn_spread}, policy_rate=0.25, baseline_rate=3.0)
    optimizer = optimized(made, monkeypatch)["optimizer"]
    rates = {
        id(one): group["initial_lr"] for group in optimizer.param_groups for one in group["params"]
    }
    for name, parameter in made.named_parameters():
        if not parameter.requires_grad:
            assert id(parameter) not in rates
            continue
        wanted = 3e-3 if "critic" in name else 2.5e-4 if "policy" in name else 1e-3
        assert rates.pop(id(parameter)) == pytest.approx(wanted), name
    assert not rates


def test_the_paper_s_network_learns_209_677_numbers() -> None:
    made = GlimpseTask(
        lambda classes: RecurrentAttentionModel(classes, (28, 28), [0.1], [0.3]),
        {"classes": list("0123456789")},
    )
    learned = sum(one.numel() for one in made.parameters() if one.requires_grad)
    assert learned == 209_677
    assert sum(one.numel() for one in made.parameters()) == learned + 3  # a start, and a spread
    critic = made.critic
    assert critic is not None
    assert sum(one.numel() for one in critic.parameters()) == 257
    expected = critic(torch.randn(2, 3, 5, 256), torch.zeros(2, 3, 5))
    assert expected.unique().tolist() == pytest.approx([0.1])


def test_the_rate_rises_and_falls_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(warm=20, optimizer=lambda groups: SGD(groups, lr=0.5))
    plan = optimized(made, monkeypatch)
    share = plan["lr_scheduler"]["scheduler"].lr_lambdas[0]
    assert plan["lr_scheduler"]["interval"] == "step"
    assert isinstance(plan["optimizer"], SGD)
    assert share(9) == pytest.approx(0.5)
    assert share(20) == pytest.approx(1)
    assert 0 < share(80) < 0.5
    assert share(100) == pytest.approx(0)


# ---- runs


@pytest.mark.parametrize("baseline", ["none", "average", "learned", "informed", "leave_one_out"])
def test_one_step_moves_every_part_that_learns(baseline: Any, tmp_path: Path) -> None:
    reward = "log_probability"  # of two rollouts, one is always the better one
    made = task(
        {"start": "learned", "learn_spread": True}, baseline=baseline, rollouts=2, reward=reward
    )
    before = {name: one.detach().clone() for name, one in made.named_parameters()}
    average = made.average.clone()
    trainer(tmp_path, max_steps=1, limit_val_batches=0).fit(made, Patches())
    still = {name for name, one in made.named_parameters() if torch.equal(one, before[name])}
    # What is read with weights of 0 has no gradient yet.
    assert still <= {"critic.hidden.weight", "critic.hidden.bias"}
    assert (made.critic is not None) == (baseline in ("learned", "informed"))
    assert torch.equal(made.average, average) == (baseline != "average")


def test_a_moving_average_follows_the_rewards() -> None:
    made = task(baseline="average")
    looks = made.model.roll_out(torch.zeros(5, 1, 9, 7), sampled=True)
    first = made.average.item()
    assert first == pytest.approx(1 / 3)  # as by chance
    losses = made.losses(looks, torch.arange(5) % 3)
    torch.testing.assert_close(losses.expected, torch.full((5, 1, 3), first))
    reward = losses.rewards.mean().item()
    assert made.average.item() == pytest.approx(first + 0.1 * (reward - first))


def test_the_spread_narrows_in_a_line_of_its_logarithm(tmp_path: Path) -> None:
    made, diary = task({"spread": 0.4}, last_spread=0.1), Diary()
    trainer(tmp_path, diary, max_epochs=2, limit_val_batches=0).fit(made, Patches())
    wanted = [0.4 * (0.1 / 0.4) ** (step / 8) for step in range(8)]
    assert diary.spreads == pytest.approx(wanted)


def test_in_random_epochs_the_policy_rests_and_all_places_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, diary = task({"learn_spread": True}, random_epochs=1, entropy=0.1, rollouts=2), Diary()
    first = made.model.policy.mean.weight.detach().clone()
    paths: list[Tensor | None] = []
    roll_out = made.model.roll_out

    def watched(*given: Any, **options: Any) -> Any:
        paths.append(options.get("path"))
        return roll_out(*given, **options)

    monkeypatch.setattr(made.model, "roll_out", watched)
    trainer(tmp_path, diary, max_epochs=2, limit_val_batches=0).fit(made, Patches())
    drawn, none = paths[:4], paths[4:]
    assert none == [None] * 4
    places = torch.stack([path for path in drawn if path is not None])
    assert places.shape == (4, 5, 4, 2)
    assert len(places.unique()) == places.numel()
    assert all(torch.equal(weight, first) for weight in diary.policies[:4])
    assert diary.spreads[:4] == pytest.approx([0.1] * 4, rel=1e-6)
    assert len(set(diary.spreads[:4])) == 1
    assert not torch.equal(diary.policies[4], first)


def test_random_epochs_need_no_others_to_compare(tmp_path: Path) -> None:
    made = task(random_epochs=1, baseline="leave_one_out", rollouts=2, normalize=True)
    run = trainer(tmp_path, limit_val_batches=0)
    run.fit(made, Patches())
    assert run.global_step == 4


FIGURES = {
    "reward", "advantage", "advantage_spread", "baseline_explains", "spread", "entropy",
    "clamped", "places_differ", "signal", "baseline_loss",
}  # fmt: skip
PARTS = {"glimpse_net", "memory", "classifier", "policy", "critic"}


def test_what_is_watched_is_logged_and_is_of_the_step_that_it_says(tmp_path: Path) -> None:
    made, kept = task({"spread": 0.4}, rollouts=3, last_spread=0.1), CSVLogger(tmp_path)
    run = trainer(tmp_path, logger=kept, max_epochs=2, log_every_n_steps=2)
    run.fit(made, Patches())
    assert kept.log_dir is not None
    rows = list(csv.DictReader((Path(kept.log_dir) / "metrics.csv").read_text().splitlines()))
    named = {f"policy/{name}" for name in FIGURES} | {f"gradient/{name}" for name in PARTS}
    assert named | {"train/loss"} <= set(rows[0])
    figured = [row for row in rows if row["policy/spread"]]
    assert [int(row["step"]) for row in figured] == [1, 3, 5, 7]
    for row in figured:
        wanted = 0.4 * (0.1 / 0.4) ** (int(row["step"]) / 8)
        assert float(row["policy/spread"]) == pytest.approx(wanted, rel=1e-5)
        assert all(math.isfinite(float(row[name])) for name in named)
        assert float(row["gradient/policy"]) > 0
    validated = [row for row in rows if row["val/error"]]
    assert len(validated) == 2
    for name in ("val/error_random", "val/error_raster", "val/loss"):
        assert float(validated[0][name]) >= 0


def test_gradients_are_watched_before_they_are_clipped(tmp_path: Path) -> None:
    made = task(every_glimpse=100.0)
    run = trainer(tmp_path, max_steps=1, gradient_clip_val=1e-3, limit_val_batches=0)
    run.fit(made, Patches())
    assert float(run.callback_metrics["gradient/classifier"]) > 1


def test_a_batch_of_one_trains_and_is_scored(tmp_path: Path) -> None:
    data = Patches(batch=1)
    data.evaluated_at_once = 1
    run = trainer(tmp_path, max_steps=2, val_check_interval=2)
    run.fit(task(normalize=True), data)
    assert 0 <= float(run.callback_metrics["val/error"]) <= 1


# ---- evaluation


def test_the_test_is_the_same_each_time_and_reads_its_images_once(tmp_path: Path) -> None:
    made, found, notes = task(starts=2, samples=3), [], []
    for seed in (1, 2):
        seed_everything(seed)
        data = Patches()
        (scores,) = trainer(tmp_path).test(made, data, verbose=False)
        assert data.opened == ["test"]
        images = data.parts["test"]
        assert isinstance(images, Counted)
        assert sorted(images.read) == list(range(11))
        found.append(scores)
        notes.append(made.notes)
    assert found[0] == found[1]
    assert set(found[0]) == {
        "test/error", "test/error_random", "test/error_raster", "test/error_sampled",
        "test/error_averaged_3x4_glimpses", "test/loss",
    }  # fmt: skip
    assert notes[0] == notes[1]


def test_training_never_opens_the_test(tmp_path: Path) -> None:
    data = Patches()
    trainer(tmp_path).fit(task(), data)
    assert sorted(data.opened) == ["train", "validation"]


def test_errors_after_each_glimpse_are_noted(tmp_path: Path) -> None:
    made = task(samples=2)
    (scores,) = trainer(tmp_path).test(made, Patches(), verbose=False)
    noted = made.notes["test_error_after_each_glimpse"]
    assert set(noted) == {"mean", "random", "raster", "sampled", "averaged"}
    assert all(len(errors) == 4 for errors in noted.values())
    assert noted["mean"][-1] == pytest.approx(scores["test/error"])
    assert noted["averaged"][-1] == pytest.approx(scores["test/error_averaged_2x4_glimpses"])
    again = task(samples=2)
    trainer(tmp_path).validate(again, Patches(), verbose=False)
    assert set(again.notes["val_error_after_each_glimpse"]) == {"mean", "random", "raster"}


def test_the_error_is_that_of_the_policy_s_means_from_all_starts(tmp_path: Path) -> None:
    made = task({"start": "center"}, samples=1).eval()
    data = Patches()
    (scores,) = trainer(tmp_path).test(made, data, verbose=False)
    given = data.part("test")[list(range(11))]
    said = made.model.eval()(given.images)
    wrong = (said.argmax(1) != given.labels).float().mean()
    assert scores["test/error"] == pytest.approx(wrong.item())
    loss = nn.functional.cross_entropy(said, given.labels)
    assert scores["test/loss"] == pytest.approx(loss.item(), rel=1e-5)


# ---- a run with a break in it


class Break(Callback):
    """Stop as if the machine had: nothing is written after the checkpoint."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # nothing else is kept
def test_a_run_with_a_break_is_the_run_without_to_the_bit(tmp_path: Path) -> None:
    """Weights, what the optimizer remembers, the schedules, both averages, and what is drawn."""

    def moving() -> Patches:
        return Patches(augment=[{"RandomTranslate": {"pixels": 2}}])

    def built(seed: int) -> GlimpseTask:
        made = task(
            {"dropout": 0.3, "core": "gru"}, rollouts=2, baseline="average", last_spread=0.05,
            warm=2, every_glimpse=0.5,
        )  # fmt: skip
        seed_everything(seed)
        return made

    whole = built(5)
    trainer(tmp_path, EMA(0.7), max_epochs=2).fit(whole, moving())
    saver = ModelCheckpoint(
        tmp_path, "last", enable_version_counter=False, save_on_train_epoch_end=False
    )
    with pytest.raises(SystemExit):
        trainer(tmp_path, EMA(0.7), saver, Break(), max_epochs=2).fit(built(5), moving())
    path = tmp_path / "last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 4
    again = built(99)  # what the next process draws first has no part
    trainer(tmp_path, EMA(0.7), max_epochs=2).fit(again, moving(), ckpt_path=path)
    assert again.trainer.global_step == whole.trainer.global_step == 8
    ours, theirs = whole.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name, one in ours.items() if not torch.equal(one, theirs[name])] == []
    kept, other = (made.trainer.optimizers[0].state_dict() for made in (whole, again))
    assert kept["param_groups"] == other["param_groups"]
    for number, state in kept["state"].items():
        assert all(torch.equal(one, other["state"][number][name]) for name, one in state.items())


def test_the_model_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    made = task({"start": "center"})
    trainer(tmp_path, saver).fit(made, Patches())
    model = read_model(tmp_path / "last.ckpt")
    assert isinstance(model, RecurrentAttentionModel)
    images = Patches().part("test")[[0, 1, 2]].images
    assert torch.equal(model(images), made.model.eval()(images))


# ---- what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"every_glimpse": -1.0},
        {"every_glimpse": float("nan")},
        {"policy_weight": -1.0},
        {"warm": -1}, {"entropy": -1.0}, {"policy_rate": -1.0}, {"baseline_rate": -1.0},
        {"random_epochs": -1}, {"smoothing": 1.0}, {"rollouts": 0}, {"starts": 0}, {"samples": -1},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_are_in_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must (be at least|lie in)"):
        task(**options)


@pytest.mark.parametrize("last", [0.0, -0.1, float("nan")])
def test_the_policy_stays_a_policy(last: float) -> None:
    with pytest.raises(ValueError, match="last_spread must be above 0"):
        task(last_spread=last)


def test_one_rollout_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"say rollouts of 2 or more.*got rollouts=1"):
        task(baseline="leave_one_out")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    trainer(tmp_path, saver, max_steps=1).fit(task(), Patches())
    other = task({"width": 13})
    with pytest.raises(ValueError, match="does not fit the model that the config"):
        trainer(tmp_path).test(other, Patches(), ckpt_path=tmp_path / "last.ckpt", verbose=False)
