"""The task in Python: what is trained how fast, what is counted, what a checkpoint holds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.data.captions.batch import CaptionBatch, caption_batch
from visattn.functional.captioning.losses import doubly_stochastic_penalty
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import ImageEncoder, SmallEncoder
from visattn.models.serialization.config import describe
from visattn.training.checkpoint.reader import read_model
from visattn.training.data.scenes import ScenesDataModule
from visattn.training.tasks import caption_eval as caption_scoring
from visattn.training.tasks import captioning
from visattn.training.tasks.caption_generation import given, read
from visattn.training.tasks.captioning import CaptioningTask

SMALL = partial(SmallEncoder, (24, 24), channels=8)


def captioner(encoder: Callable[[], ImageEncoder] = SMALL) -> Callable[[list[str]], Captioner]:
    def build(words: list[str]) -> Captioner:
        return ShowAttendTell(words, encoder(), word_width=7, hidden=11, attention=5)

    return build


def data(**changes: Any) -> ScenesDataModule:
    sizes = {"size": 24, "train": 3, "validation": 11, "test": 11, "batch": 5, "workers": 0}
    return ScenesDataModule(**{**sizes, **changes})


def trainer(folder: Path, *callbacks: Callback, **changes: Any) -> Trainer:
    quiet = {
        "logger": False,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": bool(callbacks)
        and any(isinstance(one, ModelCheckpoint) for one in callbacks),
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "use_distributed_sampler": False,
        "default_root_dir": str(folder),
        "max_steps": 3,
    }
    return Trainer(**{**quiet, **changes}, callbacks=list(callbacks))


class Watch(Callback):
    """Note what goes by."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []
        self.ids: list[list[list[str]]] = []
        self.seen: list[str] = []
        self.counts = (0.0, 0.0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ids.append([])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: CaptionBatch, batch_idx: int
    ) -> None:
        self.ids[-1].append([sample.id + sample.captions[0] for sample in batch.samples])
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: CaptionBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.seen += [sample.id for sample in batch.samples]
        task: Any = pl_module
        self.counts = (float(task.scenes["val"]["truth"].count), float(task.loss.count))


def test_the_encoder_learns_at_its_own_rate(tmp_path: Path) -> None:
    watch, scenes = Watch(), data()
    task = CaptioningTask(captioner(), scenes.data_info, encoder_rate=0.25, warm=2, hold=1.0)
    trainer(tmp_path, watch).fit(task, scenes)
    full, encoder = zip(*watch.rates, strict=True)
    assert list(full) == pytest.approx([1e-3, 2e-3, 2e-3])
    assert list(encoder) == pytest.approx([rate / 4 for rate in full])
    groups = task.trainer.optimizers[0].param_groups
    mine = {id(p) for p in task.model.encoder.parameters()}
    assert {id(p) for p in groups[1]["params"]} == mine
    assert len(groups[0]["params"]) + len(mine) == len(list(task.model.parameters()))


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")  # on purpose: it is frozen
def test_a_frozen_encoder_stays_what_it_was(tmp_path: Path) -> None:
    scenes = data(size=32)
    task = CaptioningTask(
        captioner(partial(TimmEncoder, "test_resnet", size=(32, 32))), scenes.data_info, warm=0
    )
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    trainer(tmp_path, limit_val_batches=1).fit(task, scenes)
    for name, tensor in task.model.state_dict().items():
        assert torch.equal(before[name], tensor) == name.startswith("encoder"), name
    assert len(task.trainer.optimizers[0].param_groups) == 1  # nothing of it is trained


def test_every_epoch_has_its_own_order_and_each_caption_once(tmp_path: Path) -> None:
    watch, scenes = Watch(), data()
    task = CaptioningTask(captioner(), scenes.data_info)
    trainer(tmp_path, watch, max_steps=6, max_epochs=2).fit(task, scenes)
    first, second = watch.ids
    assert first != second
    flat = [sorted(name for batch in epoch for name in batch) for epoch in (first, second)]
    assert flat[0] == flat[1]
    assert len(set(flat[0])) == 15


@pytest.mark.parametrize("count", [11, 64, 65])
def test_every_validation_scene_counts_once(tmp_path: Path, count: int) -> None:
    watch, scenes = Watch(), data(validation=count)
    task = CaptioningTask(captioner(), scenes.data_info, beam=1)
    scores = trainer(tmp_path, watch, limit_val_batches=1.0).validate(task, scenes, verbose=False)
    assert sorted(watch.seen) == sorted(f"validation-{i}" for i in range(count))
    told = [one for i in range(count) for one in scenes.scenes("validation").tellings(i)]
    assert watch.counts == (count, sum(len(one.words) + 1 for one in told))
    assert scores[0]["val/loss"] == pytest.approx(3.5, abs=0.5)  # of about log 35


def test_two_processes_share_the_samples() -> None:
    scenes = data()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScenesDataModule, "world", 2)
        read: list[str] = []
        for rank in (0, 1):
            patch.setattr(ScenesDataModule, "rank", rank)
            for batch in scenes.val_dataloader():
                read += [sample.id for sample in batch.samples]  # type: ignore[attr-defined]
    assert sorted(read) == sorted(f"validation-{i}" for i in range(11))


def losses(**settings: Any) -> tuple[CaptioningTask, CaptionBatch, float]:
    scenes = data()
    torch.manual_seed(0)
    task = CaptioningTask(captioner(), scenes.data_info, **settings).eval()
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    batch: Any = next(iter(scenes.train_dataloader()))
    return task, batch, float(task.training_step(batch, 0).detach())


@torch.no_grad()
def test_the_penalty_is_added_with_its_weight() -> None:
    task, batch, bare = losses()
    told = read(task.model, batch)
    for reduction in ("paper", "arctic", "mean"):
        _, _, without = losses(reduction=reduction)
        _, _, with_it = losses(reduction=reduction, penalty=0.3)
        penalty = doubly_stochastic_penalty(
            told.look.weights, told.rows, len(batch.lengths), reduction=reduction
        )
        assert with_it - without == pytest.approx(0.3 * float(penalty), rel=1e-3)
    assert without == bare
    words = int(batch.lengths.sum())
    assert losses(reduction="paper")[2] == pytest.approx(bare * words / len(batch.lengths))


def test_targets_are_the_next_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says exactly the right words has no loss."""
    task, batch, _ = losses()
    told = read(task.model, batch)
    sure = torch.full_like(told.logits, -30.0)
    for at, (row, step) in enumerate(zip(told.rows, told.steps, strict=True)):
        sure[at, batch.captions[row, step + 1]] = 30.0
    monkeypatch.setattr(captioning, "read", lambda *_: told._replace(logits=sure))
    assert float(task.training_step(batch, 0).detach()) == pytest.approx(0, abs=1e-5)


@torch.no_grad()
def test_controls_see_the_images_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = data(test=5)
    task = CaptioningTask(captioner(), scenes.data_info, beam=1).eval()
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    seen: list[tuple[str, bool, list[int]]] = []
    for name in ("generated", "given"):
        told = getattr(caption_scoring, name)

        def spy(
            model: Any, batch: Any, *, name: str = name, told: Any = told, **options: Any
        ) -> Any:
            order = [
                next(i for i, own in enumerate(ours.images) if torch.equal(own, image))
                for image in batch.images
            ]
            seen.append((name, model is task.model, order))
            return told(model, batch, **options)

        monkeypatch.setattr(caption_scoring, name, spy)
    ours: Any = next(iter(scenes.test_dataloader()[0]))
    task.test_step(ours, 0)
    own, others = [0, 1, 2, 3, 4], [1, 0, 3, 2, 4]  # the odd one out is not scored
    assert seen == [
        ("generated", True, own),
        ("given", True, own),
        ("generated", True, others),
        ("given", True, others),
        ("generated", False, own),
        ("given", False, own),
    ]


def test_given_captions_bring_a_map_for_each_word() -> None:
    scenes = data()
    task = CaptioningTask(captioner(), scenes.data_info).eval()
    batch: Any = next(iter(scenes.val_dataloader()))
    told = given(task.model, batch)
    assert len(told) == len(batch.captions)
    for one in told:
        assert one.text == batch.samples[one.image].captions[one.number]
        assert one.maps.shape == (len(one.text.split()), 3, 3)
        torch.testing.assert_close(one.maps.sum((1, 2)), torch.ones(len(one.maps)))


def test_given_maps_are_those_of_each_caption_alone() -> None:
    """What a caption's words look at does not depend on the others in its batch."""
    scenes = data()
    task = CaptioningTask(captioner(), scenes.data_info).eval()
    batch: Any = next(iter(scenes.val_dataloader()))
    together = {(one.image, one.number): one for one in given(task.model, batch)}
    sample = batch.samples[1]._replace(captions=batch.samples[1].captions[2:3])
    (alone,) = given(task.model, caption_batch([sample], scenes.vocabulary))
    torch.testing.assert_close(alone.maps, together[1, 2].maps)


def test_the_untrained_control_is_always_the_same_and_disturbs_nothing() -> None:
    torch.manual_seed(5)
    task = CaptioningTask(captioner(), data().data_info)
    state = torch.get_rng_state()
    once, twice = task._fresh(), task._fresh()
    assert torch.equal(torch.get_rng_state(), state)
    assert describe(once) == describe(task.model)
    for one, other in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(once.parameters()), next(task.model.parameters()))


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")  # it goes on
def test_a_task_built_in_python_saves_loads_and_resumes(tmp_path: Path) -> None:
    scenes = data()

    def build() -> CaptioningTask:
        return CaptioningTask(captioner(), scenes.data_info)

    first = build()

    def saver() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path, "last", enable_version_counter=False)

    trainer(tmp_path, saver(), max_epochs=1, max_steps=-1).fit(first, scenes)
    path = tmp_path / "last.ckpt"
    model = read_model(path)
    assert describe(model) == describe(first.model)
    assert all(
        torch.equal(one, other)
        for one, other in zip(
            model.state_dict().values(), first.model.state_dict().values(), strict=True
        )
    )
    plain = torch.load(path, weights_only=True)
    assert plain["visattn"]["model"]["class"] == "ShowAttendTell"
    again = build()
    resumed = trainer(tmp_path, saver(), max_epochs=2, max_steps=-1)
    resumed.fit(again, scenes, ckpt_path=str(path))
    assert resumed.global_step == 6
    tested = trainer(tmp_path, saver(), limit_test_batches=1)
    assert tested.test(build(), scenes, ckpt_path=str(path), verbose=False)


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    pink, cyan = (data(colors=["red", other], textures=["plain"]) for other in ("pink", "cyan"))
    assert len(pink.vocabulary) == len(cyan.vocabulary)
    saver = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    trainer(tmp_path, saver, max_epochs=1).fit(CaptioningTask(captioner(), pink.data_info), pink)
    task = CaptioningTask(captioner(), cyan.data_info)
    with pytest.raises(ValueError, match=r"another vocabulary: .* has \['cyan', 'pink'\]"):
        trainer(tmp_path).validate(task, cyan, ckpt_path=str(tmp_path / "last.ckpt"))


@pytest.mark.parametrize("name", ["penalty", "encoder_rate"])
def test_weights_are_not_negative(name: str) -> None:
    settings: dict[str, Any] = {name: -0.1}
    with pytest.raises(ValueError, match=f"{name}.* must be >= 0, got"):
        CaptioningTask(captioner(), data().data_info, **settings)


def test_the_vocabulary_is_that_of_the_kinds() -> None:
    words = data(colors=["red", "cyan"], shapes=["ring"], textures=["plain"]).data_info["words"]
    assert {"red", "cyan", "ring"} <= set(words)
    assert not {"blue", "star", "striped"} & set(words)


def test_training_may_start_from_the_weights_of_another_run(tmp_path: Path) -> None:
    scenes = data()
    torch.manual_seed(7)
    first = CaptioningTask(captioner(), scenes.data_info)
    keep = ModelCheckpoint(tmp_path, "first", save_on_train_epoch_end=True)
    trainer(tmp_path, keep).fit(first, scenes)
    second = CaptioningTask(captioner(), scenes.data_info, start=str(tmp_path / "first.ckpt"))
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_a_start_with_other_words_or_another_make_is_refused(tmp_path: Path) -> None:
    scenes = data()
    keep = ModelCheckpoint(tmp_path, "first", save_on_train_epoch_end=True)
    trainer(tmp_path, keep).fit(CaptioningTask(captioner(), scenes.data_info), scenes)
    start = str(tmp_path / "first.ckpt")
    with pytest.raises(ValueError, match="another vocabulary"):
        CaptioningTask(captioner(), {"words": scenes.data_info["words"][:-1]}, start=start)
    wider = captioner(partial(SmallEncoder, (24, 24), channels=12))
    with pytest.raises(ValueError, match="does not fit the model"):
        CaptioningTask(wider, scenes.data_info, start=start)
    with pytest.raises(FileNotFoundError):
        CaptioningTask(captioner(), scenes.data_info, start=str(tmp_path / "none.ckpt"))
