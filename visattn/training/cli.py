"""LightningCLI of `visattn fit`, `validate` and `test`: run folders and trusted imports."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from visattn.io.safe_text import print_text
from visattn.models.model_files import checkpoint_run
from visattn.training.callbacks import (
    BestCheckpoint,
    LastCheckpoint,
    RunRecorder,
    StopAtNonFinite,
    check_single_average,
)
from visattn.training.checkpoint import AtomicCheckpointIO, read_checkpoint
from visattn.training.data_module import DataModule
from visattn.training.parser import Parser, cause, class_help, trust_modules, with_network
from visattn.training.task import Task, connect


def run_cli(argv: Sequence[str]) -> int:
    """Train, validate or test with the settings of the command line and its YAML files."""
    trust_modules()
    if (described := class_help(argv)) is not None:
        print_text(described)
        return 0
    for message in (
        "Be aware that when using `ckpt_path`",  # scoring needs only the weights
        "Checkpoint directory .* is not empty",  # the run is resumed
        "Found .* in eval mode",  # these modules are frozen
        ".*does not have many workers",
        "Total length of `list` across ranks is zero",  # no validation data
        "`isinstance",
    ):
        warnings.filterwarnings("ignore", message, module="lightning")
    # LightningCLI warns about arguments; child processes are started with those of sys.argv.
    previous, sys.argv = sys.argv, [sys.argv[0], *with_network(argv)]
    try:
        TrainingCLI(
            Task, DataModule, subclass_mode_model=True, subclass_mode_data=True,
            auto_configure_optimizers=False, seed_everything_default=_SEED, parser_class=Parser,
            parser_kwargs={"prog": "visattn"},
        )  # fmt: skip
    except SIGTERMException:  # whose exit code would be 0
        return 143
    except (MisconfigurationException, FloatingPointError) as error:  # caused by the settings
        raise ValueError(str(error)) from error
    except ValueError as error:
        if "Does not validate" in str(error):  # jsonargparse appends the class it was building
            raise ValueError(cause(str(error))) from error
        raise
    except SystemExit as stop:  # Lightning's replacement for KeyboardInterrupt
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise
    finally:
        sys.argv = previous
    return 0


_SEED = 42
_DRY = "one batch of each split was processed, nothing is written"


class TrainingCLI(LightningCLI):
    """LightningCLI with a folder per run, which is resumed exactly and never overwritten.

    Settings come only from the config and the command line, not from the checkpoint.
    """

    run_dir: Path
    _new = False

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return only the subcommand that was typed, since building each parser takes seconds."""
        commands = LightningCLI.subcommands()
        # No option `weights_only`: checkpoints are never unpickled.
        typed = [word for word in sys.argv[1:2] if word in commands and word != "predict"]
        return {word: commands[word] | {"weights_only"} for word in typed}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of a run, and link `data_info` of the data module to the task."""
        parser.add_argument("--run", type=str | None, help="folder of the run")
        parser.add_argument("--init_from", type=str | None, help="fit: weights of another run")
        parser.add_argument(
            "--save_minutes", type=float, default=10.0, help="fit: write last.ckpt as often"
        )
        parser.link_arguments("data.data_info", "model.init_args.data_info", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Read no hyperparameters from the checkpoint."""

    def before_instantiate_classes(self) -> None:
        """Choose the folder of the run; disable downloads and feature caches in a dry run."""
        config = self.config[str(self.subcommand)]
        checkpoint = config.get("ckpt_path")
        if self.subcommand == "fit":
            self._choose_run(config, checkpoint)
            data, seed = config.data.get("init_args") or {}, config.seed_everything
            # A non-default seed is also that of the data, unless these have their own.
            if not isinstance(seed, bool) and seed != _SEED and data.get("seed") == 0:
                data["seed"] = seed
        else:
            self.save_config_callback = None
            read_checkpoint(checkpoint)  # raises a one-line error if it is damaged
            self.run_dir = Path(config.run or checkpoint_run(Path(checkpoint)))
        if config.trainer.fast_dev_run:
            self.save_config_callback = None
            data = config.data.get("init_args") or {}
            source = getattr(data.get("source"), "init_args", None) or {}
            if "download" in source:
                source["download"] = False
            if "feature_cache_dir" in data:
                data["feature_cache_dir"] = None

    def _choose_run(self, config: Any, checkpoint: str | None) -> None:
        """Choose the folder and the checkpoint of a run; never overwrite another run."""
        name = Path(str((config.get("config") or ["unnamed"])[0])).stem
        run = Path(config.run) if config.run else None
        if checkpoint == "last":
            run = self.run_dir = run or latest_run_dir(name)
            last = run / "checkpoints" / "last.ckpt"
            config.ckpt_path = str(last) if last.is_file() else None
        elif checkpoint:
            self.run_dir = run or checkpoint_run(Path(checkpoint))
            last = self.run_dir / "checkpoints" / "last.ckpt"
            if last.exists() and not last.samefile(checkpoint):
                raise FileExistsError(
                    f"{self.run_dir} already has {last}, which would be overwritten; use "
                    "--ckpt_path last, or another --run to start a new run from here"
                )
        else:
            self.run_dir = run or next_run_dir(name)
            self._new = not self.run_dir.exists()
            if getattr(rank_zero_only, "rank", 0) == 0:
                require_empty_run_dir(self.run_dir)
        if config.ckpt_path and "loops" not in read_checkpoint(config.ckpt_path):
            raise ValueError(f"{config.ckpt_path} cannot be resumed: it has only weights")
        number = len(list(self.run_dir.glob("config*.yaml"))) + 1  # the first config is kept
        self.save_config_kwargs["config_filename"] = (
            f"config-{number}.yaml" if number > 1 else "config.yaml"
        )
        rank_zero_info(f"{self.run_dir} starts from {config.ckpt_path or 'scratch'}")

    def instantiate_classes(self) -> None:
        """Build the task, its data and the trainer, and connect task and data."""
        super().instantiate_classes()
        connect(self.model, self.datamodule)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with logs, checkpoints and scores in the folder of the run."""
        config = self.config_init[str(self.subcommand)]
        options = config.trainer
        fitting = self.subcommand == "fit"
        named = options.callbacks or []
        named = named if isinstance(named, list) else [named]
        files = config.get("config") or []
        source = {
            "config": Path(str(files[0])).stem if files else None,
            "seed": config.seed_everything,
        }
        data = self.config[str(self.subcommand)].data.as_dict()
        callbacks: list[Any] = [RunRecorder(self.run_dir, source, data)]
        bars = [each for each in named if isinstance(each, ProgressBar)]
        if options.enable_progress_bar is not False and not bars:
            callbacks += [TQDMProgressBar(refresh_rate=1 if sys.stderr.isatty() else 50)]
        if fitting:
            check_single_average(named)
            for each in (self.model, *named):
                check_monitor(each, self.model)
            callbacks += [StopAtNonFinite(), *named]
            if options.enable_checkpointing is not False:
                folder = self.run_dir / "checkpoints"
                callbacks += [BestCheckpoint(folder, *self.model.monitor)]
                callbacks += [LastCheckpoint(folder / "last.ckpt", config.save_minutes)]
            number = len(list(self.run_dir.glob("csv-*"))) + 1  # a resumed run keeps its old tables
            kwargs["logger"] = (
                options.logger
                if options.logger is not None
                else [
                    TensorBoardLogger(self.run_dir, name="", version=""),
                    CSVLogger(self.run_dir, name="", version=f"csv-{number}"),
                ]
            )
        else:
            kwargs |= {"enable_checkpointing": False, "logger": False}
        trainer = super().instantiate_trainer(
            default_root_dir=str(self.run_dir),
            # The data modules shard samples over processes; Lightning's sampler would repeat some.
            use_distributed_sampler=False,
            callbacks=callbacks,
            plugins=options.plugins or [AtomicCheckpointIO()],
            **kwargs,
        )
        if trainer.strategy.root_device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if isinstance(trainer.strategy, DDPStrategy) and self.model.idle_parameters:
            trainer.strategy._ddp_kwargs.setdefault("find_unused_parameters", True)  # noqa: SLF001
        return trainer

    def fit(self, **kwargs: Any) -> None:
        """Train, in the folder of the run."""
        config = self.config_init["fit"]
        self.model.check_training()
        if config.init_from and not config.ckpt_path:
            self.model.initialize(config.init_from)
        if self._writes:
            # Of two runs that start at the same time only one can create the folder; the other
            # fails.
            self.run_dir.mkdir(parents=True, exist_ok=not self._new)
            for part in self.run_dir.rglob(".*.part"):  # left by a killed run
                part.unlink()
        self.trainer.fit(**kwargs, weights_only=True)

    def validate(self, **kwargs: Any) -> None:
        """Score a checkpoint on the split of the command, and print the metrics."""
        getattr(self.trainer, str(self.subcommand))(**{**kwargs, "verbose": False})
        if self.trainer.is_global_zero:
            for name, value in self.trainer.callback_metrics.items():
                print_text(f"{name:40} {float(value):.4f}")
            if sentence := self.model.notes.get("chance"):
                print_text(sentence)
            print_text(
                f"written to {self.run_dir / str(self.subcommand)}.json" if self._writes else _DRY
            )

    test = validate

    def after_fit(self) -> None:
        """Print where the run and its best checkpoint are."""
        if self.trainer.is_global_zero:
            print_text(f"run: {self.run_dir}" if self._writes else _DRY)
            for best in self.trainer.checkpoint_callbacks:
                if isinstance(best, BestCheckpoint) and best.best_model_score is not None:
                    score = f"{best.monitor} {float(best.best_model_score):.4f}"
                    print_text(f"best checkpoint ({score}): {best.best_model_path}")

    @property
    def _writes(self) -> bool:
        return self.trainer.is_global_zero and not getattr(self.trainer, "fast_dev_run", 0)


def check_monitor(callback: Any, task: Task) -> None:
    """Check that metrics of callbacks and task are logged, if the task lists its metrics."""
    monitor = getattr(callback, "monitor", None)
    metric = monitor[0] if isinstance(monitor, tuple) else monitor
    logged = task.val_scores
    if logged and metric and metric not in logged and not metric.startswith("train/"):
        raise ValueError(
            f"{type(callback).__name__}: monitor must name a validation metric, got {metric!r}; "
            f"with these data {type(task).__name__} logs {', '.join(logged)}"
        )


def next_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of a new run: `root/name/1`, then 2, and so on.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "scenes" / "7").mkdir(parents=True)
        >>> next_run_dir("scenes", folder).name, latest_run_dir("scenes", folder).name
        ('8', '7')
    """
    return root / name / str(max(_numbers(root / name), default=0) + 1)


def latest_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of the newest run; if there is none, that of the first run."""
    return root / name / str(max(_numbers(root / name), default=1))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def require_empty_run_dir(run: Path) -> None:
    """Check that a folder has no run."""
    if run.exists() and any(run.iterdir()):
        raise FileExistsError(
            f"{run} already has a run; choose another --run, remove the folder, or resume "
            "the run with --ckpt_path last"
        )
