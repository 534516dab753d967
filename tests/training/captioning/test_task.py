"""The captioning task: optimizer, losses, metrics, controls and checkpoints."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from task_runs import small_trainer
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.data.captions.batch import CaptionBatch, collate_captions
from visattn.data.scenes.dataset import SceneCaptions, Scenes
from visattn.functional.captions import doubly_stochastic_penalty
from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.config import build_model, model_config
from visattn.models.saving import load
from visattn.results.captions import Phrase
from visattn.results.kinds import UNKNOWN
from visattn.training.captioning import task as captioning
from visattn.training.captioning.data import CaptionData
from visattn.training.captioning.evaluation import reference_captions, teacher_force_batch
from visattn.training.captioning.task import CaptioningTask
from visattn.training.data_module import InputSpec

SMALL = partial(SmallEncoder, (24, 24), channels=8)


def captioner(encoder: Callable[[], ImageEncoder] = SMALL) -> Callable[[list[str]], Captioner]:
    def build(words: list[str]) -> Captioner:
        return ShowAttendTell(words, encoder(), embed_dim=7, hidden_size=11, attention_dim=5)

    return build


def data(**changes: Any) -> CaptionData:
    sizes = {"image_size": 24, "train": 3, "val": 11, "test": 11}
    module = CaptionData(SceneCaptions(**{**sizes, **changes}), batch_size=5, num_workers=0)
    module.input_spec = InputSpec((24, 24), (0.5,) * 3, (0.5,) * 3)
    return module


def test_each_validation_scene_and_word_counts_once(tmp_path: Path) -> None:
    """One more than a batch has."""
    scenes = data(val=65)
    task = CaptioningTask(captioner(), scenes.data_info, beam_size=1)
    scored: Any = task.evaluations["val"]
    scored.reset = lambda: None
    (scores,) = small_trainer(tmp_path).validate(task, scenes, verbose=False)
    drawn = scenes.samples("validation")
    assert isinstance(drawn, Scenes)
    words = [len(text.split()) + 1 for scene in drawn for text in scene.captions]
    assert float(scored.scenes["caption_accuracy"].count) == 65
    assert float(scored.loss.count) == sum(words)
    assert scores["val/loss"] == pytest.approx(3.5, abs=0.5)  # about log 35


def losses(**settings: Any) -> tuple[CaptioningTask, CaptionBatch, float]:
    scenes = data()
    torch.manual_seed(0)
    task = CaptioningTask(captioner(), scenes.data_info, **settings).eval()
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    batch: Any = next(iter(scenes.train_dataloader()))
    return task, batch, float(task.training_step(batch, 0).detach())


@torch.no_grad()
def test_penalty_is_added_with_its_weight() -> None:
    task, batch, bare = losses()
    output = teacher_force_batch(task.model, batch)
    for reduction in ("paper", "arctic", "mean"):
        _, _, without = losses(reduction=reduction)
        _, _, with_it = losses(reduction=reduction, doubly_stochastic_weight=0.3)
        penalty = doubly_stochastic_penalty(
            output.attention.weights, output.rows, len(batch.lengths), reduction=reduction
        )
        assert with_it - without == pytest.approx(0.3 * float(penalty), rel=1e-3)
    assert without == bare
    words = int(batch.lengths.sum())
    assert losses(reduction="paper")[2] == pytest.approx(bare * words / len(batch.lengths))


@torch.no_grad()
def test_attention_is_supervised_inside_the_boxes_of_phrases() -> None:
    """By minus the log of the attention there, over all words of a phrase or its last one."""
    left = Phrase(0, 2, ((0.0, 0.0, 0.5, 1.0),), (), "a dog")  # one and a half of three columns
    _, batch, bare = losses()
    first, *others = batch.samples
    phrases = ((left,), *[()] * (len(first.captions) - 1))
    batch = batch._replace(samples=(first._replace(phrases=phrases), *others))
    pairs = zip(batch.image_indices.tolist(), batch.caption_indices, strict=True)
    row = list(pairs).index((0, 0))
    options = {"attention_loss_weight": 0.3, "attention_loss": "mass"}
    for words, start in (("all", 0), ("last", 1)):
        task, _, without = losses(**options, supervised_words=words)
        assert without == bare  # of captions without phrases
        output = teacher_force_batch(task.model, batch)
        at = (output.rows == row) & (output.steps >= start) & (output.steps < 2)
        maps = output.attention.weights[at].unflatten(1, (3, 3)) * torch.tensor([1.0, 0.5, 0.0])
        expected = bare - 0.3 * float(maps.sum((1, 2)).log().mean())
        assert float(task.training_step(batch, 0)) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_word_dropout_changes_what_is_read_and_not_the_targets() -> None:
    """At a rate of almost 1 the loss is that of captions in which all words are unknown."""
    task, batch, loss = losses(word_dropout=1 - 1e-9)
    inputs = batch.captions.masked_fill(batch.captions > UNKNOWN, UNKNOWN)
    output = teacher_force_batch(task.model, batch._replace(captions=inputs))
    targets = batch.captions[output.rows, output.steps + 1]
    assert loss == pytest.approx(float(cross_entropy(output.logits, targets)), rel=1e-5)
    words = batch.captions > UNKNOWN
    dropped = torch.stack([batch.drop_words(0.3).captions == UNKNOWN for _ in range(300)])
    assert not dropped[:, ~words].any()
    margin = 4 * (0.3 * 0.7 / (300 * int(words.sum()))) ** 0.5
    assert float(dropped[:, words].double().mean()) == pytest.approx(0.3, abs=margin)


@torch.no_grad()
def test_controls_use_the_images_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = data(test=5)
    task = CaptioningTask(captioner(), scenes.data_info, beam_size=1).eval()
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    testing: Any = SimpleNamespace(state=SimpleNamespace(fn="test"))
    task.trainer = testing
    calls: list[tuple[str, bool, list[int]]] = []
    for name in ("generate_captions", "reference_captions"):
        original = getattr(captioning, name)

        def spy(
            model: Any, batch: Any, *, name: str = name, original: Any = original, **options: Any
        ) -> Any:
            order = [
                next(i for i, own in enumerate(scene_batch.images) if torch.equal(own, image))
                for image in batch.images
            ]
            calls.append((name, model is task.model, order))
            return original(model, batch, **options)

        monkeypatch.setattr(captioning, name, spy)
    built: list[Any] = []
    monkeypatch.setattr(
        captioning, "build_model", lambda config: built.append(config) or build_model(config)
    )
    scene_batch: Any = next(iter(scenes.test_dataloader()[0]))
    names = task.state_dict().keys()
    state = torch.get_rng_state()
    for index in range(2):
        task.test_step(scene_batch, index)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(built) == 1  # the untrained model serves all batches
    assert task.state_dict().keys() == names
    own, others = [0, 1, 2, 3, 4], [1, 0, 3, 2, 4]  # the last image has no partner
    assert calls == 2 * [
        ("generate_captions", True, own),
        ("reference_captions", True, own),
        ("generate_captions", True, others),
        ("reference_captions", True, others),
        ("generate_captions", False, own),
        ("reference_captions", False, own),
    ]


def test_reference_captions_have_a_map_for_each_word_whatever_the_batch() -> None:
    scenes = data()
    task = CaptioningTask(captioner(), scenes.data_info).eval()
    batch: Any = next(iter(scenes.val_dataloader()))
    captions = reference_captions(task.model, batch)
    assert len(captions) == len(batch.captions)
    for caption in captions:
        sample = batch.samples[caption.image_index]
        assert caption.text == sample.captions[caption.caption_index]
        assert caption.maps.shape == (len(caption.text.split()), 3, 3)
        torch.testing.assert_close(caption.maps.sum((1, 2)), torch.ones(len(caption.maps)))
    own = batch.samples[1]
    sample = own._replace(image=batch.images[1], captions=own.captions[2:3])
    (alone,) = reference_captions(task.model, collate_captions([sample], scenes.vocabulary))
    [same] = [c for c in captions if (c.image_index, c.caption_index) == (1, 2)]
    torch.testing.assert_close(alone.maps, same.maps)


@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_gate_weight_lowers_the_gate_and_needs_one() -> None:
    def adaptive(words: list[str]) -> Captioner:
        return KnowingWhenToLook(words, SMALL(), embed_dim=7, hidden_size=11, attention_dim=5)

    scenes = data()
    batch: Any = next(iter(scenes.train_dataloader()))
    torch.manual_seed(0)
    task = CaptioningTask(adaptive, scenes.data_info, gate_weight=0.5)
    output = teacher_force_batch(task.model, batch)
    penalty = task.attention_penalties(output, batch)
    torch.testing.assert_close(penalty, 0.5 * output.attention.gate.mean())
    cast("Tensor", penalty).backward()
    bias = cast("KnowingWhenToLook", task.model).decoder.attention.sentinel_key.bias
    assert bias.grad is not None
    assert bias.grad.any()

    def transformer(words: list[str]) -> Captioner:
        return TransformerCaptioner(words, SMALL(), embed_dim=8, num_layers=1, num_heads=2)

    task = CaptioningTask(transformer, scenes.data_info, gate_weight=0.5)
    with pytest.raises(ValueError, match="gate_weight must be 0 for a TransformerCaptioner"):
        task.attention_penalties(teacher_force_batch(task.model, batch), batch)


def test_a_task_of_a_script_saves_weights_for_another_of_the_same_words(tmp_path: Path) -> None:
    scenes = data(colors=["red", "cyan"], shapes=["ring"], textures=["plain"])
    words = scenes.data_info["words"]
    assert {"red", "cyan", "ring"} <= set(words)
    assert not {"blue", "star", "striped"} & set(words)
    first = CaptioningTask(captioner(), scenes.data_info)
    saver = ModelCheckpoint(tmp_path, "first", save_on_train_epoch_end=True)
    short = {"max_steps": 2, "limit_val_batches": 0, "enable_checkpointing": True}
    small_trainer(tmp_path, saver, **short).fit(first, scenes)
    start = tmp_path / "first.ckpt"
    assert model_config(load(start)) == model_config(first.model)
    second = CaptioningTask(captioner(), scenes.data_info)
    second.initialize(start)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    with pytest.raises(ValueError, match="trained with other words"):
        CaptioningTask(captioner(), {"words": words[:-1]}).initialize(start)
    wider = captioner(partial(SmallEncoder, (24, 24), channels=12))
    with pytest.raises(ValueError, match="does not fit the model"):
        CaptioningTask(wider, scenes.data_info).initialize(start)
