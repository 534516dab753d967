"""Measure speed in interleaved rounds, on the CPU.

    python tools/benchmark.py peers     maps, compared with captum, torchcam and grad-cam
    python tools/benchmark.py first     the first map of a process, compared with grad-cam
    python tools/benchmark.py bulk      `visattn caption` and `overlay`, compared with the model
    python tools/benchmark.py tokens    time and memory of attention by the number of tokens
    python tools/benchmark.py step scenes_demo "scenes_demo @HEAD~5"
                                        training steps: a config, options of `visattn fit`, and a
                                        git revision

Each implementation runs in its own process, and the processes take turns, so that other load on the
machine slows all of them equally. Seconds are CPU seconds of one thread. A ratio is the time of the
other implementation divided by the time of the first, the median over the rounds of one run: above
1, the first is faster. Compare ratios, not seconds of different runs.

`peers` and `first` need the libraries that `make peers` installs into `.venv-peers`. This file runs
there, too, so its top-level imports must exist in both environments.
"""

import argparse
import csv
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NoReturn, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
Row = dict[str, str]

# ------------------------------------------------------------------ processes that take turns


class Worker:
    """An implementation in its own process, which computes once per turn.

    Args:
        words: Name of a function in `WORKERS`, and its arguments.
        python: Interpreter of the environment that has the implementation.
        root: Checkout that `import visattn` finds; None for environments without visattn.
    """

    def __init__(self, *words: str, python: Path | str = sys.executable, root: Path | None = ROOT):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root or "")}
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # return freed memory: reproducible
        self.words = words
        self.errors = TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [str(python), __file__, "worker", *words], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        """Wait for the first computation of the process."""
        try:
            self.first = self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.process.communicate()
        self.errors.close()

    def take_turn(self) -> None:
        """Let the process compute once."""
        print(file=self.process.stdin, flush=True)
        self.seconds.append(self._answer())

    def _answer(self) -> Any:
        for line in self.process.stdout or ():
            return json.loads(line)
        self.errors.seek(0)
        log = "\n".join(self.errors.read().splitlines()[-10:])
        raise RuntimeError(f"{shlex.join(self.words)} failed:\n{log}")


class Turns:
    """The other end of a `Worker`, in its process."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # output of commands goes to stderr

    def answer(self, value: object) -> None:
        """Send a value to the `Worker`."""
        print(json.dumps(value), file=self._answers, flush=True)

    def wait(self) -> None:
        """Wait for the next turn; exit if there is none."""
        if not sys.stdin.readline():
            os._exit(0)

    def repeat(self, run: Callable[[], object]) -> NoReturn:
        """Call a function in each turn, and send its CPU seconds."""
        while True:
            self.wait()
            self.answer(seconds_of(run))


def seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def interleave(workers: Sequence[Worker], rounds: int) -> None:
    """Let each worker compute once per round, in alternating order."""
    for number in range(rounds):
        for worker in reversed(workers) if number % 2 else workers:
            worker.take_turn()


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Return the cells of a comparison from the seconds of the same rounds."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "ratio of times": f"{median(ratios):.2f}",
        "rounds": f"{min(ratios):.2f} to {max(ratios):.2f}",
    }


def pair(ours: float, theirs: float, digits: int = 3) -> str:
    """Return two values as one cell."""
    return f"{ours:.{digits}f}, {theirs:.{digits}f}"


# ------------------------------------------------------------------ comparison with other libraries

CNNS = ("resnet50", "mobilenet_v2", "convnext_tiny", "efficientnet_b0", "densenet121")
LIBRARIES = ("grad-cam", "torchcam", "captum")
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "gradcam": (CNNS[:2], LIBRARIES),
    "layercam": (CNNS[:1], LIBRARIES[:2]),
    "gradcam++": (CNNS[:1], LIBRARIES[:2]),
    "scorecam": (["resnet18@64"], LIBRARIES[:2]),
    "ablationcam": (["resnet18@64"], LIBRARIES[:1]),
    "input_gradient": (CNNS[:2], LIBRARIES[2:]),
    "integrated_gradients": (CNNS[:2], LIBRARIES[2:]),
    "smoothgrad": (CNNS[:2], LIBRARIES[2:]),
    "occlusion": (CNNS[:2], LIBRARIES[2:]),
}
"""Methods, with torchvision networks (`NAME@SIDE`, by default 224) and libraries that have them."""
STEPS, SAMPLES = 20, 10
Run = Callable[[], Tensor]


def peers(args: argparse.Namespace) -> Iterator[Row]:
    """Compare the first and later maps of a process: time, memory and values."""
    for method in args.only or CASES:
        networks, libraries = CASES[method]
        for network in networks:
            model, image = build(network)
            with torch.no_grad():
                label = int(model(image).argmax())  # other classes may have an empty Grad-CAM
            with TemporaryDirectory() as folder, ExitStack() as stack:
                ours, *others = (
                    stack.enter_context(map_worker(library, method, network, label, folder))
                    for library in ("visattn", *libraries)
                )
                interleave([ours, *others], args.rounds)
                maps = {library: load_file(f"{folder}/{library}")["maps"] for library in libraries}
                our_map = load_file(f"{folder}/visattn")["maps"]
            for (library, their_map), theirs in zip(maps.items(), others, strict=True):
                difference = largest_difference(our_map, their_map)
                yield {
                    "map": method,
                    "network": f"{network.partition('@')[0]}, {image.shape[-1]} px",
                    "compared with": library,
                    "first, s": pair(ours.first["seconds"], theirs.first["seconds"], 2),
                    "later, s": pair(median(ours.seconds), median(theirs.seconds)),
                    **ratio(ours.seconds, theirs.seconds),
                    "MB": pair(ours.first["megabytes"], theirs.first["megabytes"], 0),
                    "difference": "other noise" if method == "smoothgrad" else f"{difference:.0e}",
                }


def first(args: argparse.Namespace) -> Iterator[Row]:
    """Compare the first Grad-CAM of new processes."""
    for network in args.only or CNNS:
        seconds: dict[str, list[float]] = {"visattn": [], "grad-cam": []}
        with TemporaryDirectory() as folder:
            for _ in range(args.rounds):
                for library, values in seconds.items():
                    with map_worker(library, "gradcam", network, 1, folder) as worker:
                        values.append(worker.first["seconds"])
        ours, theirs = seconds.values()
        firsts = {"first, s": pair(median(ours), median(theirs), 2)}
        yield {"network": network, "compared with": "grad-cam"} | firsts | ratio(ours, theirs)


def map_worker(library: str, method: str, network: str, label: int, folder: str) -> Worker:
    """Return the process of a library, which writes its first map to the folder."""
    words = ("map", library, method, network, str(label), f"{folder}/{library}")
    if library == "visattn":
        return Worker(*words)
    if not PEERS.exists():
        raise FileNotFoundError(f"{library} is not installed in .venv-peers: run make peers")
    return Worker(*words, python=PEERS, root=None)


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of two maps scaled to [0, 1], ours resized to theirs."""
    if ours.shape != theirs.shape:
        ours = interpolate(ours[:, None], theirs.shape[-2:], mode="bilinear")[:, 0]
    return float((in_unit_range(ours) - in_unit_range(theirs)).abs().max())


def in_unit_range(maps: Tensor) -> Tensor:
    """Scale maps to a minimum of 0 and a maximum of 1."""
    low, high = maps.min(), maps.max()
    return (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)


def build(network: str) -> tuple[nn.Module, Tensor]:
    """Return a network of `CASES` with random weights, and a noise image."""
    from torchvision.models import get_model

    name, _, side = network.partition("@")
    torch.manual_seed(0)
    return get_model(name, weights=None).eval(), torch.randn(1, 3, *[int(side or 224)] * 2)


def compute_maps(turns: Turns, library: str, method: str, *words: str) -> None:
    """Compute maps of a network; in the process of a `Worker`."""
    network, label, file = words
    model, image = build(network)
    libraries = {"visattn": of_visattn, "grad-cam": of_gradcam, "torchcam": of_torchcam}
    run = libraries.get(library, of_captum)(model, image, method, int(label))  # imports it
    maps: list[Tensor] = []
    before = megabytes("VmRSS")
    seconds = seconds_of(lambda: maps.append(run()))
    save_file({"maps": maps[0].float().contiguous()}, file)
    turns.answer({"seconds": seconds, "megabytes": megabytes("VmHWM") - before})
    turns.repeat(run)


def last_layer(model: Any) -> nn.Module:
    """Return the last feature layer of a torchvision CNN."""
    return model.layer4 if hasattr(model, "layer4") else model.features


def of_visattn(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of visattn."""
    from visattn import Explainer

    window = image.shape[-1] // 4
    options: dict[str, dict[str, Any]] = {
        "integrated_gradients": {"n_steps": STEPS},
        "smoothgrad": {"num_samples": SAMPLES},
        "occlusion": {"sliding_window_size": window, "stride": window},
    }
    explainer = Explainer(model)
    chosen = options.get(method, {})
    # Captum occludes the logit; with a class, visattn occludes the probability.
    target = (lambda scores: scores[:, label]) if method == "occlusion" else label
    return lambda: explainer.explain(image, method, target, **chosen)[0].values[None]


def of_gradcam(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of pytorch-grad-cam."""
    import pytorch_grad_cam as library  # pyright: ignore[reportMissingImports]
    from pytorch_grad_cam.utils.model_targets import (  # pyright: ignore[reportMissingImports]
        ClassifierOutputTarget,
    )

    names = {"gradcam": "GradCAM", "layercam": "LayerCAM", "scorecam": "ScoreCAM"}
    names |= {"gradcam++": "GradCAMPlusPlus", "ablationcam": "AblationCAM"}

    def run() -> Tensor:
        method_class = getattr(library, names[method])
        with method_class(model=model, target_layers=[last_layer(model)]) as cam:
            return torch.from_numpy(cam(image, targets=[ClassifierOutputTarget(label)]).copy())

    return run


def of_torchcam(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of torchcam."""
    from torchcam import methods  # pyright: ignore[reportMissingImports]

    names = {"gradcam": "GradCAM", "layercam": "LayerCAM", "scorecam": "ScoreCAM"}
    names |= {"gradcam++": "GradCAMpp"}

    def run() -> Tensor:
        with getattr(methods, names[method])(model, target_layer=last_layer(model)) as extractor:
            return extractor(label, model(image.clone().requires_grad_()))[0].detach()

    return run


def of_captum(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of captum."""
    from captum import attr  # pyright: ignore[reportMissingImports]

    def run() -> Tensor:
        if method == "gradcam":
            cam = attr.LayerGradCam(model, last_layer(model))
            return cam.attribute(image, target=label, relu_attributions=True)[:, 0]
        if method == "input_gradient":
            return attr.Saliency(model).attribute(image, target=label).amax(1)
        if method == "integrated_gradients":
            method_class = attr.IntegratedGradients(model)
            return method_class.attribute(image, target=label, n_steps=STEPS).sum(1)
        if method == "smoothgrad":
            maps = attr.NoiseTunnel(attr.Saliency(model)).attribute(
                image, nt_type="smoothgrad", nt_samples=SAMPLES, target=label, abs=False,
                stdevs=0.15 * float(image.amax() - image.amin()),
            )  # fmt: skip
            return maps.abs().amax(1)
        window = (3, image.shape[-1] // 4, image.shape[-1] // 4)
        options = {"sliding_window_shapes": window, "strides": window, "perturbations_per_eval": 4}
        with torch.no_grad():
            return attr.Occlusion(model).attribute(image, target=label, **options)[:, 0]

    return lambda: run().detach()


def megabytes(entry: str) -> float:
    """Return the current (`VmRSS`) or peak (`VmHWM`) memory of this process; 0 if not known."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:")) / 1024


# ------------------------------------------------------------------ training steps


def step(args: argparse.Namespace) -> Iterator[Row]:
    """Compare training steps of configs, options and revisions with the first variant."""
    with ExitStack() as stack:
        workers: list[Worker] = []
        for variant in args.variants:
            words = shlex.split(variant)
            options = [word for word in words if not word.startswith("@")]
            root, folder = ROOT, stack.enter_context(TemporaryDirectory())
            for word in words:
                if word.startswith("@"):
                    root = stack.enter_context(checkout(word[1:]))
            worker = Worker("train", str(args.steps), folder, *options, root=root)
            workers.append(stack.enter_context(worker))
        interleave(workers, args.rounds)
    for variant, worker in zip(args.variants, workers, strict=True):
        yield {
            "config": variant,
            "first loss": f"{worker.first:.6g}",
            "step, s": f"{median(worker.seconds):.4f}",
            **ratio(workers[0].seconds, worker.seconds),
        }


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a git revision."""
    command = ["git", "-C", str(ROOT), "archive", revision]
    files = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def train(turns: Turns, steps: str, folder: str, config: str, *options: str) -> None:
    """Train a config, and wait for a turn before each `steps` steps; in the process of a `Worker`.

    The time of a step excludes data loading.
    """
    from lightning.pytorch import Callback, Trainer

    from visattn.cli import main

    class Timer(Callback):
        seconds, done = 0.0, 0

        def on_train_batch_start(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.begin = time.process_time()

        def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.seconds += time.process_time() - self.begin
            self.done += 1
            if self.done == 1:
                turns.answer(float(outputs["loss"]))
            elif self.done % int(steps) == 1:
                turns.answer(self.seconds / int(steps))
            else:
                return
            turns.wait()
            self.seconds = 0.0

    fit = Trainer.fit

    def fit_with_timer(trainer: Any, *args: Any, **kwargs: Any) -> None:
        trainer.callbacks.append(Timer())
        fit(trainer, *args, **kwargs)

    setattr(Trainer, "fit", fit_with_timer)  # noqa: B010 (works in any revision)
    words = ["fit", "--config", config, "--run", f"{folder}/run", "--seed_everything", "0"]
    main([*words, "--trainer.accelerator", "cpu", "--data.num_workers", "0", *options])


# ------------------------------------------------------------------ many photos

BULK = {
    "caption": ("va.caption", ["--model", "scenes-captioner"]),
    "overlay": ("va.explain", ["--model", "timm:resnet18", "--model-args", "pretrained=false"]),
}
"""Commands, the functions behind them, and options."""


def bulk(args: argparse.Namespace) -> Iterator[Row]:
    """Compare commands on a folder of photos with their functions, which write no files."""
    from visattn.cli import main

    with TemporaryDirectory() as folder:
        scenes = ["data", "scenes", "--count", str(args.photos), "--size", "224"]
        main([*scenes, "--out", f"{folder}/photos"])
        for command in args.only or BULK:
            with ExitStack() as stack:
                alone, whole = (
                    stack.enter_context(Worker("photos", name, folder))
                    for name in (BULK[command][0], command)
                )
                interleave([alone, whole], args.rounds)
            seconds = [median(worker.seconds) / args.photos for worker in (alone, whole)]
            yield {
                "function": BULK[command][0],
                "compared with": f"visattn {command}",
                "photo, s": pair(*seconds),
                **ratio(alone.seconds, whole.seconds),
            }


def run_photos(turns: Turns, name: str, folder: str) -> None:
    """Run a command or its function on all photos; in the process of a `Worker`."""
    import timm

    import visattn as va
    from visattn.cli import main

    photos = sorted(Path(folder, "photos").glob("*.png"))
    captioner, network = va.load("scenes-captioner"), timm.create_model("resnet18").eval()

    def command() -> None:
        with TemporaryDirectory() as out:
            main([name, f"{folder}/photos", *BULK[name][1], "--out", f"{out}/results"])

    functions: dict[str, Callable[[], object]] = {
        "va.caption": lambda: va.caption(captioner, photos),
        "va.explain": lambda: va.explain(network, photos, "gradcam"),
    }
    run = functions.get(name, command)
    turns.answer(seconds_of(run))
    turns.repeat(run)


# ------------------------------------------------------------------ number of tokens

PATTERNS = ("full", "neighborhood", "strided", "linformer", "lsh")
SIDES = (8, 14, 20, 28, 40, 56, 80)  # of grids: 64 to 6,400 tokens


def tokens(args: argparse.Namespace) -> Iterator[Row]:
    """Compare forward and backward passes of one layer of each attention type of our ViT."""
    results: dict[str, list[tuple[float, float]]] = {pattern: [] for pattern in PATTERNS}
    for side in SIDES:
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker("attention", p, str(side))) for p in PATTERNS]
            interleave(workers, args.rounds)
        for pattern, worker in zip(PATTERNS, workers, strict=True):
            results[pattern].append((median(worker.seconds), worker.first))
            cells = {"tokens": str(side**2), "attention": pattern, "MB": f"{worker.first:.0f}"}
            seconds = f"{median(worker.seconds):.4f}"
            yield cells | {"pass, s": seconds, **ratio(workers[0].seconds, worker.seconds)}
    if args.figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for index, label in enumerate(("seconds of CPU", "MB")):
            axes = figure.add_subplot(1, 2, index + 1, xlabel="tokens", ylabel=label)
            for pattern, values in results.items():
                axes.loglog([side**2 for side in SIDES], [v[index] for v in values], "o-",
                            label=pattern, markersize=3)  # fmt: skip
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(args.figure, dpi=120)


def run_attention(turns: Turns, pattern: Any, side: str) -> None:
    """Run a layer with a head width of 64, as in ViT-S; in the process of a `Worker`."""
    from visattn.models.vit import Attention

    grid = (int(side), int(side))
    layer = Attention(128, 2, attention=pattern, num_tokens=grid[0] * grid[1])
    x = torch.randn(1, grid[0] * grid[1], 128, requires_grad=True)
    before = megabytes("VmRSS")
    layer(x, grid).sum().backward()
    turns.answer(megabytes("VmHWM") - before)
    turns.repeat(lambda: layer(x, grid).sum().backward())


WORKERS: dict[str, Callable[..., None]] = {
    "map": compute_maps, "train": train, "photos": run_photos, "attention": run_attention,
}  # fmt: skip

# ------------------------------------------------------------------ command line


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run, known in ((peers, CASES), (first, CNNS), (step, ()), (bulk, BULK), (tokens, ())):
        command = commands.add_parser(run.__name__, description=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
        command.add_argument("--table", type=Path, metavar="FILE", help="CSV file of the rows")
        if known:
            command.add_argument("--only", nargs="+", choices=tuple(known), help="rows (all)")
        if run is step:
            command.add_argument("variants", nargs="+", metavar='"CONFIG [OPTIONS] [@REVISION]"')
            command.add_argument("--steps", type=int, default=20, help="steps per round (20)")
        if run is tokens:
            command.add_argument("--figure", type=Path, metavar="FILE", help="PNG of both curves")
        if run is bulk:
            command.add_argument("--photos", type=int, default=64, help="number of photos (64)")
    return parser


def write_rows(rows: Iterable[Row], table: Path | None) -> None:
    """Print each row, and write the rows so far as CSV with commit and date."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    written: list[Row] = []
    for row in rows:
        written.append(row | {"measured": f"{commit} {datetime.now(UTC):%Y-%m-%d}"})
        print(*(f"{name}: {cell}" for name, cell in row.items()), sep=" | ", flush=True)
        if table:
            with table.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(written[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(written)


def main(argv: Sequence[str]) -> int:
    """Run a comparison; return 0, or 2 without the libraries of `make peers`."""
    if argv[:1] == ["worker"]:
        torch.set_num_threads(1)
        WORKERS[argv[1]](Turns(), *argv[2:])
        return 0
    args = build_parser().parse_args(argv)
    try:
        write_rows(args.run(args), args.table)
    except (FileNotFoundError, RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
