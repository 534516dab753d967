"""AttentionLogger in LightningModules of others: first maps, interval, loggers, errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from visattn.images.reader import read_image
from visattn.training.callbacks import logging
from visattn.training.callbacks.logging import AttentionLogger


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


def loader(*, constant: bool = False) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(14, 3, 32, 32, generator=generator)
    if constant:  # a run may resume anywhere
        images = images[:2].repeat(7, 1, 1, 1)
    return DataLoader(TensorDataset(images, torch.arange(14) % 2), batch_size=2)


def train(
    folder: Path,
    callback: AttentionLogger,
    more: Sequence[Callback] = (),
    ckpt_path: str | None = None,
    **options: Any,
) -> Foreign:
    torch.manual_seed(0)
    module = Foreign()
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **options}
    Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=[callback, *more],
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        **options,
    ).fit(module, loader(constant=bool(more)), loader(), ckpt_path=ckpt_path)  # fmt: skip
    return module


def photo() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 255, (40, 56, 3), np.uint8)


def drawn(folder: Path) -> list[int]:
    """Return the steps whose panels were written."""
    files = folder.glob("attention/step-*/*.jpg")
    return sorted(int(file.parent.name.removeprefix("step-")) for file in files)


def logger(**options: Any) -> AttentionLogger:
    return AttentionLogger(photo(), "gradcam", img_size=32, **options)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
class TestTrainings:
    @pytest.mark.filterwarnings(
        "ignore:Be aware that when using", "ignore:You.re resuming", "ignore:Checkpoint dir"
    )
    def test_a_resumed_run_draws_on(self, tmp_path: Path) -> None:
        save = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)
        options = {"enable_checkpointing": True, "more": [save], "max_epochs": 1}
        train(tmp_path, logger(every_n_steps=3), max_steps=4, **options)
        resumed = str(tmp_path / "step=4.ckpt")
        train(tmp_path, logger(every_n_steps=3), ckpt_path=resumed, **options)
        assert drawn(tmp_path) == [0, 3, 4, 6, 7]

    def test_the_training_is_the_same_with_and_without(self, tmp_path: Path) -> None:
        with_maps = train(tmp_path, logger(every_n_steps=1)).state_dict()
        without = train(tmp_path, logger(every_n_steps=1000)).state_dict()
        assert all(torch.equal(with_maps[name], without[name]) for name in without)

    def test_maps_are_drawn_after_each_validation(self, tmp_path: Path) -> None:
        callback = logger(every_n_steps=None, module="net")
        train(tmp_path, callback, max_epochs=2, inference_mode=True)
        assert drawn(tmp_path) == [0, 7, 14]

    def test_loggers_that_take_images_get_them(self, tmp_path: Path) -> None:
        board = TensorBoardLogger(tmp_path, "board")
        shown: list[tuple[str, int]] = []
        board.experiment.add_image = lambda name, image, step, dataformats: shown.append(
            (name, step)
        )
        train(tmp_path, logger(every_n_steps=4), logger=board)
        assert shown == [("attention/1-image", step) for step in (0, 4, 7)]

    def test_weights_and_biases_stores_them_offline(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wandb = pytest.importorskip("wandb", reason="needs wandb", exc_type=ImportError)
        from lightning.pytorch.loggers import WandbLogger

        monkeypatch.setenv("WANDB_SILENT", "true")
        sent: dict[int, np.ndarray] = {}
        send = logging._send

        def remember(trainer: Trainer, name: str, panel: np.ndarray) -> None:
            sent[trainer.global_step] = panel
            send(trainer, name, panel)

        monkeypatch.setattr(logging, "_send", remember)
        runs = WandbLogger(project="visattn", save_dir=tmp_path, offline=True)
        train(tmp_path, logger(every_n_steps=4), logger=runs)
        wandb.finish()
        media = tmp_path.glob("wandb/offline-run-*/files/media/images/attention/*.png")
        stored = sorted(media, key=lambda file: int(file.stem.split("_")[1]))
        assert list(sent) == [0, 4, 7]
        for file, panel in zip(stored, sent.values(), strict=True):
            assert np.array_equal(read_image(file).pixels, panel)

    def test_a_method_that_does_not_fit_stops_the_run_before_the_first_step(
        self, tmp_path: Path
    ) -> None:
        callback = AttentionLogger(photo(), "rollout", img_size=32)
        with pytest.raises(ValueError, match="rollout does not fit"):
            train(tmp_path, callback)

    def test_an_unknown_module_is_refused_with_the_names_that_exist(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"module must name a part of Foreign \(net\)"):
            train(tmp_path, logger(module="backbone"))

    def test_a_later_error_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        callback = logger(every_n_steps=3)
        started = callback.on_train_start

        def start(trainer: Trainer, pl_module: LightningModule) -> None:
            started(trainer, pl_module)
            assert callback.panels is not None
            monkeypatch.setattr(callback.panels, "draw", _full)

        monkeypatch.setattr(callback, "on_train_start", start)
        warned: list[str] = []
        monkeypatch.setattr(logging, "rank_zero_warn", warned.append)
        train(tmp_path, callback)
        assert warned[0] == "AttentionLogger drew no maps after step 3: the disk is full"


def _full(*_: Any) -> Any:
    raise OSError("the disk is full")


def test_a_module_without_forward_gives_its_network() -> None:
    class NoForward(LightningModule):
        def __init__(self, **parts: nn.Module) -> None:
            super().__init__()
            for name, part in parts.items():
                self.add_module(name, part)

    find = logging._default_network
    net, loss = nn.Linear(2, 2), nn.CrossEntropyLoss()
    assert find(NoForward(net=net, loss=loss)) is net
    assert isinstance(find(Foreign()), Foreign)
    with pytest.raises(ValueError, match=r"no forward: .* with parameters are net, teacher"):
        find(NoForward(net=net, teacher=nn.Linear(2, 2)))


def test_a_config_can_name_it(tiny: Path, tmp_path: Path) -> None:
    from PIL import Image

    from visattn.cli import main

    Image.fromarray(photo()).save("photo.png")
    callback = "{images: photo.png, method: words, every_n_steps: 2}"
    text = tiny.read_text().replace(
        "  callbacks:\n",
        f"  callbacks:\n    - class_path: AttentionLogger\n      init_args: {callback}\n",
    )
    Path("config.yaml").write_text(text)
    assert main(["fit", "--config", "config.yaml", "--run", "run"]) == 0
    assert drawn(Path("run")) == [0, 2, 4]
