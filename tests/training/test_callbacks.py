"""EMA, the stop at NaN, monitored metrics, and panels of images."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from task_runs import of, small_trainer, tiny_run
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.cli import main
from visattn.models.resnet import AttentionResNet
from visattn.training import panels
from visattn.training.callbacks import EMA, RunRecorder, StopAtNonFinite
from visattn.training.checkpoint import check_weights_before_saving
from visattn.training.panels import AttentionLogger, ImageLogger, draw_crops
from visattn.training.task import Task


@pytest.fixture
def _any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.mark.usefixtures("_any_trainer")
def test_the_average_follows_all_but_frozen_weights_with_a_warm_up() -> None:
    """Of weights of two dtypes, statistics and a counter, to which one is added in each step."""
    for callback, steps in ((EMA(0.5, use_warmup=False), 3), (EMA(0.998), 300)):
        model = LightningModule()
        model.trained = nn.Parameter(torch.zeros(3))
        model.wide = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        model.frozen = nn.Parameter(torch.randn(1000), requires_grad=False)
        model.register_buffer("running_mean", torch.zeros(2))
        model.register_buffer("steps", torch.tensor(0))
        callback.setup(SimpleNamespace(callbacks=[callback]), model, "fit")  # type: ignore[arg-type]
        average: Any = callback._average_model
        expected = 0.0
        for number in range(steps):
            for name in ("trained", "wide", "running_mean", "steps"):
                getattr(model, name).detach().add_(1)
            average.update_parameters(model)
            warmed = (1 + number) / (10 + number) if callback.use_warmup else 1.0
            decay = min(callback.decay, warmed) if number else 0.0
            expected = decay * expected + (1 - decay) * (number + 1)
        for name, precise in (("trained", 1e-4), ("wide", 1e-12), ("running_mean", 1e-4)):
            values = getattr(average.module, name).tolist()
            assert values == pytest.approx([expected] * len(values), rel=precise), name
        assert int(average.module.steps) == steps
        assert torch.equal(average.module.frozen, model.frozen)
        both: Any = SimpleNamespace(callbacks=[callback, EMAWeightAveraging()])
        with pytest.raises(ValueError, match="only one average of the weights"):
            callback.setup(both, model, "fit")


class Falling(Task):
    """One weight that falls by the number of its batch in each step."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1, bias=False))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.model.get_parameter("weight") * batch).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
class TestTrainings:
    @pytest.mark.parametrize("first", [False, True])
    def test_panels_show_averaged_weights_in_any_order(self, first: bool, tmp_path: Path) -> None:
        drawn: list[float] = []

        class Panels(ImageLogger):
            def panels(self, model: Any, data: Any) -> Iterator[tuple[str, np.ndarray]]:
                drawn.append(model.weight.item())
                yield "panels/0", np.zeros((2, 3, 3), np.uint8)

        task, callbacks = Falling(), [Panels(), EMA(0.998)]
        start = task.model.get_parameter("weight").item()
        batches: Any = DataLoader(torch.ones(1))  # type: ignore[arg-type]
        board = TensorBoardLogger(tmp_path)
        ordered = callbacks[::-1] if first else callbacks
        small_trainer(tmp_path, *ordered, max_epochs=2, logger=board).fit(task, batches, batches)
        assert len(drawn) == 2  # once in each validation
        assert drawn[-1] == task.model.get_parameter("weight").item()  # left averaged
        assert drawn[-1] - (start - 2) > 0.05

    def test_gradients_that_are_not_finite_stop_before_the_weights(self, tmp_path: Path) -> None:
        """Of a loss that is not, also an accumulated one; and of a finite one."""

        class Steep(Falling):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                weight = self.model.get_parameter("weight")
                return (weight - weight.detach()).sqrt().sum()  # 0, with a slope of infinity

        cases = ((Falling(), torch.nan, 1, "-?nan"), (Falling(), torch.inf, 2, "-?(nan|inf)"),
                 (Steep(), 1.0, 1, "0"))  # fmt: skip
        for task, value, accumulated, loss in cases:
            batches: Any = torch.tensor([1.0, value])
            trainer = small_trainer(
                tmp_path, StopAtNonFinite(), accumulate_grad_batches=accumulated
            )
            message = rf"the gradients of step . are not finite \(loss {loss}\); checkpoints"
            with pytest.raises(FloatingPointError, match=message):
                trainer.fit(task, DataLoader(batches), DataLoader(batches))
            assert task.model.get_parameter("weight").isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("w", torch.nan), ("w", torch.inf), ("running_var", torch.inf), ("table", torch.nan)],
)
def test_nonfinite_weights_are_not_saved(name: str, value: float) -> None:
    state = {"w": torch.ones(3), "running_var": torch.ones(2), "table": torch.zeros(5)}
    check_weights_before_saving(
        {**state, "mask": torch.tensor([-torch.inf]), "steps": torch.tensor(3)}, state
    )
    state[name][1] = value
    with pytest.raises(FloatingPointError, match=rf"{name} is not finite, so nothing is saved"):
        check_weights_before_saving(state, {"w": state["w"]})


@pytest.mark.usefixtures("_any_trainer")
def test_scores_are_standard_json_with_notes_in_files(tmp_path: Path) -> None:
    notes = {"signature": "n:2", "test_captions": [{"caption": "Ein Hündchen"}]}
    trainer: Any = SimpleNamespace(
        callback_metrics={"b": torch.tensor(0.5), "a": torch.tensor(torch.nan)},
        is_global_zero=True, fast_dev_run=0, state=SimpleNamespace(fn="test"),
        ckpt_path="best.ckpt",
        datamodule=SimpleNamespace(
            test_splits=("test",), datasets={"test": [0]}, shared_photos=lambda *_: ["a.png"]
        ),
        lightning_module=SimpleNamespace(notes=notes),
    )  # fmt: skip
    recorder = RunRecorder(tmp_path / "new", {}, {})
    for change in ({"is_global_zero": False}, {"fast_dev_run": 1}):
        recorder.on_test_end(SimpleNamespace(**{**vars(trainer), **change}), None)  # type: ignore[arg-type]
    trainer.state.fn = "fit"
    recorder.on_validation_end(trainer, None)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    recorder.on_test_end(trainer, None)  # type: ignore[arg-type]
    scores = json.loads((tmp_path / "new" / "test.json").read_text())
    assert scores == {"a": None, "b": 0.5, "signature": "n:2"}
    captions = (tmp_path / "new" / "test_captions.json").read_text(encoding="utf-8")
    assert json.loads(captions) == [{"caption": "Ein Hündchen"}]
    tested = json.loads((tmp_path / "new" / "run.json").read_text())["test"]
    assert (tested["images"], tested["shared"]) == ({"test": 1}, 1)


class Foreign(LightningModule):
    """A classifier as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 5, 3, 2), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(5, 2),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


PHOTO = np.random.default_rng(3).integers(0, 255, (40, 56, 3), np.uint8)


def followed(folder: Path, method: str = "gradcam", **options: Any) -> Foreign:
    """Train on two batches, with the maps of a photo."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module = Foreign()
    maps = {key: options.pop(key) for key in ("every_n_steps", "module") if key in options}
    callback = AttentionLogger(PHOTO, method, input_size=32, **maps)
    loader = DataLoader(TensorDataset(images, torch.arange(4) % 2), batch_size=2)
    small_trainer(folder, callback, **options).fit(module, loader, loader)
    return module


def drawn(folder: Path) -> list[int]:
    """Return the steps whose panels were written."""
    files = folder.glob("attention/step-*/*.jpg")
    return sorted(int(file.parent.name.removeprefix("step-")) for file in files)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
class TestAttention:
    def test_maps_of_some_steps_reach_the_loggers_and_leave_the_training(
        self, tmp_path: Path
    ) -> None:
        board = TensorBoardLogger(tmp_path, "board")
        shown: list[tuple[str, int]] = []
        board.experiment.add_image = lambda name, image, step, dataformats: shown.append(
            (name, step)
        )
        with_maps = followed(tmp_path, every_n_steps=3, logger=board).state_dict()
        assert shown == [("attention/1-image", step) for step in (0, 2)]  # first, and last
        seldom = followed(tmp_path, every_n_steps=None, module="net", logger=board).state_dict()
        assert shown[2:] == shown[:2]  # at first, and after the validation; the end adds no more
        assert all(torch.equal(with_maps[name], seldom[name]) for name in seldom)

    def test_what_does_not_fit_stops_the_run_before_the_first_step(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="rollout does not fit"):
            followed(tmp_path, "rollout")
        with pytest.raises(AttributeError, match="backbone"):
            followed(tmp_path, module="backbone")

    def test_a_later_error_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw = panels.AttentionPanels.draw

        def full(self: Any, model: nn.Module, step: int) -> Any:
            if step:
                raise OSError("the disk is full")
            return draw(self, model, step)

        monkeypatch.setattr(panels.AttentionPanels, "draw", full)
        warned: list[str] = []
        monkeypatch.setattr(panels, "rank_zero_warn", warned.append)
        followed(tmp_path, every_n_steps=1)
        assert warned[0] == "AttentionLogger drew no maps after step 1: the disk is full"


def test_a_module_without_forward_gives_its_network() -> None:
    class NoForward(LightningModule):
        def __init__(self, **parts: nn.Module) -> None:
            super().__init__()
            for name, part in parts.items():
                self.add_module(name, part)

    net, loss = nn.Linear(2, 2), nn.CrossEntropyLoss()
    assert panels._network(NoForward(net=net, loss=loss), None) is net
    assert isinstance(panels._network(Foreign(), None), Foreign)
    with pytest.raises(ValueError, match=r"no forward: .* its parts are net, teacher"):
        panels._network(NoForward(net=net, teacher=nn.Linear(2, 2)), None)


def test_a_config_can_name_it() -> None:
    Image.fromarray(PHOTO).save("photo.png")
    logger = of("AttentionLogger", images="photo.png", method="attention", every_n_steps=1)
    Path("config.yaml").write_text(tiny_run(logger))
    assert main(["fit", "--config", "config.yaml", "--run", "run"]) == 0
    assert drawn(Path("run")) == [0, 1, 2]


def classifier(stem_block: str | None) -> AttentionResNet:
    return AttentionResNet(
        ("a", "b"), depth=8, stem_width=4, stem_block=stem_block, img_size=(28, 28)
    ).eval()


def test_frame_and_crop_show_the_left_half() -> None:
    images = np.zeros((1, 28, 28, 3), np.uint8)
    images[:, :, :14] = (0, 0, 250)
    model = classifier("stn")
    transformer = model.input_block
    assert isinstance(transformer, SpatialTransformer)
    theta = torch.tensor([0.5, 0, -0.5, 0, 1, 0])  # x from -1 to 0: the left half
    torch.nn.init.zeros_(transformer.localization.fc2.weight)
    with torch.no_grad():
        transformer.localization.fc2.bias.copy_(theta)
    panel = draw_crops(model, images, width=356)
    image, crop = panel[8:348, 8:348], panel[360:700, 8:348]
    assert (crop[2:-2, 12:-12] == (0, 0, 250)).all()  # the half fills the view but for its edges
    gold = (image[..., 0] > 200) & (image[..., 2] < 100)
    assert gold[10:-10, 160:180].any(1).all()  # a line down the middle
    assert not gold[10:-10, 200:].any()
    with pytest.raises(ValueError, match="has no Spatial Transformer"):
        draw_crops(classifier(None), images)
