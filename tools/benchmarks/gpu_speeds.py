"""All figures of a GPU in one table; without a GPU a dry run of small sizes on the CPU."""

import datetime as dt
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from torchvision.models import get_model

from benchmarks.clocks import Timing, in_turn
from benchmarks.loader_speeds import synthetic_photo
from benchmarks.map_speeds import gradcam_speed
from benchmarks.step_counts import MODELS, step_counts
from visattn.attribution.explained_model import analyze_model
from visattn.attribution.perturbation import rise
from visattn.attribution.targets import ClassTarget
from visattn.cli import main
from visattn.data.augment.images import RandomResizedCrop
from visattn.models.vit.vision_transformer import create_vit
from visattn.training.callbacks.ema import AveragedWeights

PARTS = ("step", "vit", "loader", "rise", "gradcam", "overlay", "kernels", "epochs")
EPOCHS = {"ram_mnist": "MNIST", "flickr8k_soft": "flickr8k"}
"""Configs of which an epoch is timed, with the folder of their data in VISATTN_DATA."""


class GpuRow(NamedTuple):
    """One row of the table.

    Args:
        part: Of `PARTS`.
        title: What was measured.
        value: With its unit.
        ratio: To another row, or "".
        target: Of the ratio, or "".
    """

    part: str
    title: str
    value: str
    ratio: str = ""
    target: str = ""

    def __str__(self) -> str:
        return "| " + " | ".join(self) + " |"


class Sizes(NamedTuple):
    """Sizes of a measurement: those of the table, or of a dry run."""

    device: str
    vit: dict[str, Any]
    """Of a ViT in timm's words; `depth`, `embed_dim` and `num_heads` are S/16 by default."""
    side: int
    batch: int
    backend: str
    cnn: str
    images: int
    masks: int
    chunks: tuple[int, ...]
    photos: int
    workers: int
    dry: bool


GPU = Sizes("cuda", {}, 224, 128, "inductor", "resnet50", 16, 2048, (32, 512), 500, 16, dry=False)
CPU = Sizes(
    "cpu", {"depth": 1, "embed_dim": 48, "num_heads": 3}, 32, 2, "eager", "resnet18", 1, 4, (1, 2),
    2, 0, dry=True,
)  # fmt: skip
"""Sizes of the dry run, whose figures have no meaning."""


def gpu_figures(parts: Sequence[str], *, rounds: int) -> Iterator[GpuRow]:
    """Yield the rows of the table, one part after the other.

    Args:
        parts: Of `PARTS`.
        rounds: Timed rounds of each comparison.
    """
    sizes = GPU if torch.cuda.is_available() else CPU
    measure: dict[str, Callable[[Sizes, int], Iterator[GpuRow]]] = {
        "step": host_syncs,
        "vit": vit_steps,
        "loader": loader_throughput,
        "rise": rise_chunks,
        "gradcam": gradcam_rows,
        "overlay": overlay_rows,
        "kernels": kernel_names,
        "epochs": epochs,
    }
    torch.set_float32_matmul_precision("high")
    yield from chain.from_iterable(measure[part](sizes, rounds) for part in parts)


def table_head(*, dry: bool) -> str:
    """Return machine and date, and the first lines of the Markdown table."""
    name = "no GPU: dry run of small sizes on the CPU, whose figures have no meaning"
    if not dry:
        name = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    today = dt.datetime.now(tz=dt.UTC).date()
    return (
        f"{name}; torch {torch.__version__}, timm {timm.__version__}, {os.cpu_count()} CPU cores, "
        f"{today}\n\n| part | | value | ratio | target |\n|---|---|---|---|---|"
    )


# ------------------------------------------------------------------ training


def host_syncs(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:  # noqa: ARG001
    """Count operations and host syncs of a training step of each model on the device."""
    for count in step_counts(tuple(MODELS), accelerator="cpu" if sizes.dry else "gpu"):
        title = f"host syncs of a training step, {count.title}"
        names = ", ".join(f"{number} {name}" for name, number in count.sync_names.items())
        value = f"{count.syncs} of {count.ops} operations ({names})"
        yield GpuRow("step", title, value, "", "at most 2")


def vit_steps(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:
    """Time steps of ViT-S/16 in bfloat16: eager, compiled, with EMA, and timm's."""
    runs = {
        "ours": TrainingStep(_ours(sizes), sizes, compiled=True),
        "ours, eager": TrainingStep(_ours(sizes), sizes),
        "ours, with EMA": TrainingStep(_ours(sizes), sizes, compiled=True, ema=True),
        "timm": TrainingStep(_timm(sizes), sizes, compiled=True),
        "timm, eager": TrainingStep(_timm(sizes), sizes),
    }
    timings = in_turn(dict(runs), rounds)
    targets = {
        "ours, eager": "at least 2",
        "ours, with EMA": "at most 1.02",
        "timm": "at least 1.0",
    }
    for name, timing in timings.items():
        way = name if "eager" in name else f"{name}, compiled"
        title = f"ViT-S/16, {sizes.batch} photos, bf16: {way}"
        photos = f"{sizes.batch / timing.seconds:,.0f} photos/s"
        ratio = "" if name == "ours" else _ratio(timing, "time / ours compiled")
        yield GpuRow("vit", title, photos, ratio, targets.get(name, ""))


class TrainingStep:
    """A training step of a classifier on one batch.

    Args:
        model: From normalized images to logits of 1000 classes.
        sizes: Sizes.
        compiled: Whether to compile it.
        ema: Whether to update a moving average of the weights.
    """

    def __init__(
        self, model: nn.Module, sizes: Sizes, *, compiled: bool = False, ema: bool = False
    ) -> None:
        self.device, self.model = sizes.device, model.to(sizes.device).train()
        self.forward = torch.compile(model, backend=sizes.backend) if compiled else model
        self.average = AveragedWeights(model, decay=0.999) if ema else None
        self.optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)
        size = (sizes.batch, 3, sizes.side, sizes.side)
        self.images = torch.randn(size, device=self.device)
        self.labels = torch.randint(1000, (sizes.batch,), device=self.device)

    def __call__(self) -> None:
        """Take a step and wait for the device."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        _wait(self.device)


def kernel_names(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:  # noqa: ARG001
    """Name the kernels of attention in a training step."""
    step = TrainingStep(_ours(sizes), sizes)
    step()
    on_gpu = sizes.device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        step()
    names = {event.key for event in profiled.key_averages()}
    words = ("flash", "fmha", "cudnn_generated_fort", "attention")
    kernels = sorted(name for name in names if any(word in name.lower() for word in words))
    yield GpuRow(
        "kernels", "attention in a step of ViT-S/16", "; ".join(kernels)[:300] or "none found"
    )


class Photos(Dataset[Tensor]):
    """Random resized crops of one JPEG, read and decoded each time.

    Args:
        count: Number of crops.
        side: Side of a crop.
    """

    def __init__(self, count: int, side: int) -> None:
        self.photo, self.crop = synthetic_photo((375, 500)), RandomResizedCrop(size=side)
        self.uniforms = torch.rand(count, 1, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.uniforms)

    def __getitem__(self, index: int) -> Tensor:
        return self.crop.read(self.photo, self.uniforms[index])


def loader_throughput(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:  # noqa: ARG001
    """Compare photos per second of the loader alone with those of a compiled step."""
    count = sizes.batch * (4 if sizes.dry else 100)
    loader = DataLoader(
        Photos(count, sizes.side),
        sizes.batch,
        num_workers=sizes.workers,
        pin_memory=not sizes.dry,
        persistent_workers=sizes.workers > 0,
    )
    loaded = 0.0
    for _ in range(2):  # the first pass starts the workers
        begin = time.perf_counter()
        for batch in loader:
            batch.to(sizes.device, non_blocking=True)
        _wait(sizes.device)
        loaded = count / (time.perf_counter() - begin)
    step = TrainingStep(_ours(sizes), sizes, compiled=True)
    trained = sizes.batch / in_turn({"ours": step}, 7)["ours"].seconds
    title = f"loader, JPEGs of 500 x 375 at {sizes.side}, {sizes.workers} workers"
    ratio = f"{loaded / trained:.2f} loader / compiled step"
    yield GpuRow("loader", title, f"{loaded:,.0f} photos/s", ratio, "at least 1.2")


def epochs(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:  # noqa: ARG001
    """Time an epoch of two configs, validation included."""
    for config, folder in EPOCHS.items():
        title = f"epoch of {config}, start and validation included"
        if not (Path(os.environ.get("VISATTN_DATA", "")) / folder).is_dir():
            yield GpuRow("epochs", title, f"not run: no folder {folder} in VISATTN_DATA")
            continue
        with tempfile.TemporaryDirectory() as run:
            command = [sys.executable, "-m", "visattn", "fit", "--config", config, "--run", run]
            command += ["--trainer.max_epochs", "1"]
            if sizes.dry:
                for part, count in (("train", "2"), ("val", "1")):
                    command += [f"--trainer.limit_{part}_batches", count]
            begin = time.perf_counter()
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - begin
        lines = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        failed = f"failed: {lines[-1][:200] if lines else ran.returncode}"
        yield GpuRow("epochs", title, failed if ran.returncode else f"{seconds:.1f} s")


# ------------------------------------------------------------------ maps


def rise_chunks(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:
    """Time RISE of one photo with several numbers of images in a forward pass."""
    model = get_model(sizes.cnn, weights=None).eval().to(sizes.device)
    explained = analyze_model(model, (sizes.side, sizes.side))
    image = torch.randn(1, 3, sizes.side, sizes.side, device=sizes.device)

    def run(size: int | None) -> Callable[[], None]:
        def explain() -> None:
            target = ClassTarget([1])
            rise(explained, image, target, num_masks=sizes.masks, internal_batch_size=size)
            _wait(sizes.device)

        return explain

    runs = {"ours": run(None)} | {f"{size} at once": run(size) for size in sizes.chunks}
    for name, timing in in_turn(dict(runs), rounds).items():
        title = f"RISE, {sizes.cnn}, {sizes.masks} masks, {'default' if name == 'ours' else name}"
        ratio = "" if name == "ours" else _ratio(timing, "time / default")
        yield GpuRow("rise", title, f"{timing.seconds:.3f} s", ratio)


def gradcam_rows(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:
    """Time Grad-CAM beside plain code and, if installed, pytorch-grad-cam."""
    for figure in gradcam_speed(rounds, sizes.device, sizes.cnn, sizes.images):
        spread = f"{figure.ratio:.2f} ({figure.least:.2f} to {figure.most:.2f})"
        seconds = ", ".join(f"{way} {amount:.4f} s" for way, amount in figure.amounts.items())
        yield GpuRow("gradcam", figure.title, seconds, spread, figure.target)


def overlay_rows(sizes: Sizes, rounds: int) -> Iterator[GpuRow]:  # noqa: ARG001
    """Time `visattn overlay` over a folder of photos, with the utilization of the GPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for index in range(sizes.photos):
            (folder / "in" / f"{index:05}.jpg").write_bytes(synthetic_photo((375, 500)))
        torch.save(get_model(sizes.cnn, weights=None).state_dict(), folder / "weights.pth")
        command = ["overlay", str(folder / "in"), "--model", f"torchvision:{sizes.cnn}"]
        command += ["--weights", str(folder / "weights.pth"), "--device", sizes.device]
        begin = time.perf_counter()
        hidden = io.StringIO()
        with _Utilization() as utilization, redirect_stdout(hidden), redirect_stderr(hidden):
            code = main([*command, "--method", "gradcam", "--out", str(folder / "out")])
        seconds = time.perf_counter() - begin
        lines = hidden.getvalue().strip().splitlines()
    title = f"overlay of {sizes.photos} photos, {sizes.cnn}"
    failed = f"failed: {lines[-1][:200] if lines else code}"
    yield GpuRow("overlay", title, failed if code else f"{seconds:.1f} s, {utilization}")


class _Utilization:
    """Mean utilization of the GPU as nvidia-smi reports it, twice a second."""

    def __init__(self) -> None:
        self.percents: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Utilization":
        if shutil.which("nvidia-smi"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def __str__(self) -> str:
        if not self.percents:
            return "utilization not measured"
        return f"GPU in use {sum(self.percents) / len(self.percents):.0f} % of the time"

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._done.wait(0.5):
            ran = subprocess.run(query, capture_output=True, text=True, check=False)
            if ran.returncode == 0:
                self.percents.append(float(ran.stdout.split()[0]))


def _ours(sizes: Sizes) -> nn.Module:
    names = [f"class {number}" for number in range(1000)]
    return create_vit("small", names, img_size=(sizes.side, sizes.side), **sizes.vit)


def _timm(sizes: Sizes) -> nn.Module:
    return timm.create_model("vit_small_patch16_224", img_size=sizes.side, **sizes.vit)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _ratio(timing: Timing, of: str) -> str:
    return f"{timing.ratio:.2f} ({timing.least:.2f} to {timing.most:.2f}) {of}"
