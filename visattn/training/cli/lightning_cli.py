"""LightningCLI of `visattn fit`, `validate` and `test`: run folders, resuming, dry runs."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from visattn import training
from visattn.io.atomic import remove_partial_files
from visattn.io.safe_text import print_text
from visattn.models.model_files import checkpoint_run, run_config
from visattn.training.callbacks.checkpoints import (
    BestCheckpoint,
    LastCheckpoint,
    MonitorFallback,
    check_monitor,
)
from visattn.training.callbacks.guards import ExitOnSignal, SkipNonFiniteSteps
from visattn.training.callbacks.lightning_callbacks import prepare_callbacks
from visattn.training.callbacks.progress import StepBar
from visattn.training.callbacks.run_record import RunRecorder, changes
from visattn.training.checkpoint import (
    AtomicCheckpointIO,
    check_resumable,
    read_checkpoint,
    read_progress,
)
from visattn.training.cli.arguments import expand_env_vars
from visattn.training.cli.checks import check_trainer, score_table
from visattn.training.cli.parser import Parser, configure_jsonargparse, report_user_errors
from visattn.training.data_module import DataModule
from visattn.training.run_dir import (
    ScoreWriter,
    create_run_dir,
    find_resume_point,
    latest_run_dir,
    lock_run_dir,
    next_run_dir,
    require_empty_run_dir,
    set_aside,
)
from visattn.training.task import Task, connect

for _name in dir(training):
    getattr(training, _name)  # a class that is imported needs no module in a config

OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "run": (str | None, None, "folder of the run (runs/CONFIG/NUMBER)"),
    "init_from": (
        str | None,
        None,
        "fit: start from the weights of this checkpoint of another run",
    ),
    "save_minutes": (float, 10.0, "fit: write last.ckpt every N minutes; 0: only after validation"),
    "save_steps": (int, 0, "fit: also write last.ckpt every N steps; 0: never"),
    "max_nonfinite_steps": (
        int,
        10,
        "fit: stop after N consecutive steps with non-finite gradients",
    ),
    "compile": (
        Literal["no", "default", "reduce-overhead"],
        "no",
        "fit: compile the forward pass of training with torch.compile",
    ),
    "channels_last": (bool, False, "fit: keep weights of convolutions in channels-last order"),
    "float32_matmul_precision": (
        Literal["highest", "high", "medium"],
        "high",
        "precision of float32 products on a GPU; high: TensorFloat-32",
    ),
}
"""Options besides those of Lightning: type, default and help."""


def main(
    argv: Sequence[str],
    *,
    cli_class: "type[TrainingCLI] | None" = None,
    dry_run: bool = False,
) -> int:
    """Train, validate or test as the command line and its YAML files say.

    A dry run processes one batch of each split and writes nothing.
    """
    configure_jsonargparse()
    silence_lightning()
    # LightningCLI warns if it gets arguments; child processes are started with those of sys.argv.
    previous = sys.argv
    sys.argv = [sys.argv[0], *argv]
    try:
        with report_user_errors():
            (cli_class or TrainingCLI)(
                Task,
                DataModule,
                dry_run=dry_run,
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=42,
                parser_class=Parser,
                parser_kwargs={"prog": "visattn"},
            )
    except SystemExit as stop:  # Lightning turns Ctrl-C into this
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise
    finally:
        sys.argv = previous
    return 0


def silence_lightning() -> None:
    """Filter out Lightning's tips, and warnings that do not apply here."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "Tip:" not in record.getMessage()
    )
    for message in (
        "Be aware that when using `ckpt_path`",  # scoring needs the weights only
        "Checkpoint directory .* is not empty",  # the run is resumed
        "Found .* in eval mode",  # these modules are frozen
        ".*does not have many workers",
        "Total length of `list` across ranks is zero",  # there are no validation data
        "`isinstance",
    ):
        warnings.filterwarnings("ignore", message, module="lightning")


class TrainingCLI(LightningCLI):
    """LightningCLI with one folder per run: checkpoints are resumed exactly, never overwritten.

    Settings come from the config and the command line only, not from the checkpoint.
    """

    run_dir: Path
    resume_from: Path | None = None
    """Checkpoint that training continues from."""
    unusable: tuple[Path, ...] = ()
    """Damaged checkpoints in the folder of the run, renamed before training."""

    def __init__(self, *args: Any, dry_run: bool = False, **kwargs: Any) -> None:
        self.dry_run = dry_run
        super().__init__(*args, **kwargs)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the subcommand that was typed: building the parser of each takes seconds."""
        commands = LightningCLI.subcommands()
        del commands["predict"]  # `visattn caption` and `visattn overlay` take its place
        typed = [command for command in sys.argv[1:2] if command in commands]
        # `weights_only` is no option: checkpoints are never unpickled.
        return {command: commands[command] | {"weights_only"} for command in typed or commands}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `OPTIONS`, and pass the facts of the data module to the task."""
        for name, (value_type, default, text) in OPTIONS.items():
            parser.add_argument(f"--{name}", type=value_type, default=default, help=text)
        parser.link_arguments("data.data_info", "model.init_args.data_info", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Read no hyperparameters from the checkpoint."""

    def before_instantiate_classes(self) -> None:
        """Check the arguments and choose the folder of the run."""
        config = self.config[str(self.subcommand)]
        fitting = self.subcommand == "fit"
        for key in list(config.keys()):
            config[key] = expand_env_vars(config[key])
        check_trainer(config.trainer)
        checkpoint = config.get("ckpt_path")
        if not fitting:
            self.save_config_callback = None
            if not checkpoint:
                self.parser.error(
                    f"{self.subcommand} needs --ckpt_path FILE: without it the weights are random"
                )
            read_checkpoint(checkpoint)  # raises a one-line error if it is damaged
        self.run_dir = self._choose_run_dir(config, checkpoint)
        if fitting and checkpoint:
            self._find_checkpoint(checkpoint, new_run=bool(config.run))
        elif fitting and config.run and _is_rank_zero():
            # The other processes start when rank 0 has already written to the folder.
            resume_option = f"--ckpt_path {self.run_dir}/checkpoints/last.ckpt"
            require_empty_run_dir(self.run_dir, resume_option)
        if self.dry_run:
            self._write_nothing(config)

    def instantiate_classes(self) -> None:
        """Build the task, its data and the trainer, and connect the first two."""
        super().instantiate_classes()
        connect(self.model, self.datamodule)

    def _choose_run_dir(self, config: Any, checkpoint: str | None) -> Path:
        if config.run:
            return Path(config.run)
        if checkpoint and Path(checkpoint).is_file():
            return checkpoint_run(Path(checkpoint))
        files = config.get("config") or []
        name = Path(str(files[0])).stem if files else "unnamed"
        return latest_run_dir(name) if checkpoint in ("last", "best") else next_run_dir(name)

    def _find_checkpoint(self, checkpoint: str, *, new_run: bool) -> None:
        """Find the checkpoint to resume from; refuse to overwrite later steps or another run."""
        count = len(list(self.run_dir.glob("config*.yaml"))) + 1  # the first config is kept
        name = f"config-{count}.yaml" if count > 1 else "config.yaml"
        self.save_config_kwargs["config_filename"] = name
        newest = find_resume_point(self.run_dir)
        self.resume_from = newest.file
        self.unusable = newest.unusable
        if checkpoint == "last":
            return
        best = self.run_dir / "checkpoints" / "best.ckpt"
        file = best if checkpoint == "best" else Path(checkpoint)
        check_resumable(read_checkpoint(file), file)
        step = read_progress(file).step
        self.resume_from = file
        if new_run and checkpoint_run(file).resolve() != self.run_dir.resolve():
            if _is_rank_zero():
                require_empty_run_dir(self.run_dir, f"--ckpt_path last --run {self.run_dir}")
        elif newest.file and (last_step := newest.progress.step) > step:
            raise FileExistsError(
                f"{file} is of step {step}, and the run continues to step {last_step}, which would "
                f"be overwritten; use --ckpt_path last --run {self.run_dir}, or another --run to "
                "start a new run from here"
            )

    def _write_nothing(self, config: Any) -> None:
        """Limit a dry run to one batch, without downloads and without a feature cache."""
        config.trainer.fast_dev_run = 1
        data = config.data.get("init_args") or {}
        for name, value in (("download", False), ("feature_cache_dir", None)):
            if name in data:
                data[name] = value
        existing = next(
            path for path in (self.run_dir, *self.run_dir.absolute().parents) if path.exists()
        )
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise OSError(f"{self.run_dir} cannot be written: {existing} is not a writable folder")

    def fit(self, **kwargs: Any) -> None:
        """Train while holding the lock of the run folder."""
        self._prepare_model()
        with ExitStack() as stack:
            if _is_rank_zero() and self._writes():
                create_run_dir(self.run_dir, new=self.config["fit"].get("ckpt_path") is None)
                stack.enter_context(lock_run_dir(self.run_dir))
                for folder in (self.run_dir, *filter(Path.is_dir, self.run_dir.rglob("*"))):
                    remove_partial_files(folder, older_than=0)  # of a killed run
                set_aside(self.unusable, self.run_dir)
            if kwargs.get("ckpt_path"):
                source = (
                    f"resumes from {self.resume_from}"
                    if self.resume_from
                    else "starts from scratch"
                )
                rank_zero_info(f"{self.run_dir} {source}")
            kwargs["ckpt_path"] = self.resume_from and str(self.resume_from)
            try:
                self.trainer.fit(**kwargs)
            except FloatingPointError as error:  # caused by the training settings, not a bug
                raise ValueError(str(error)) from error

    def _prepare_model(self) -> None:
        """Check that the task can train, load its first weights, apply the options of speed."""
        self.model.check_training()
        config = self.config_init["fit"]
        if config.init_from and not self.resume_from:
            self.model.initialize(config.init_from)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        if config.compile != "no":
            self.model.compile_training(config.compile)

    def validate(self, **kwargs: Any) -> None:
        """Score the validation split and print its scores as one table."""
        self._score(kwargs)

    def test(self, **kwargs: Any) -> None:
        """Score the test split and print its scores as one table."""
        self._score(kwargs)

    def _score(self, kwargs: dict[str, Any]) -> None:
        command = str(self.subcommand)
        verbose = kwargs.pop("verbose", True)
        getattr(self.trainer, command)(**kwargs, verbose=False)
        file = self.run_dir / f"{command}.json"
        if self.dry_run:
            self._print_dry_run(file, "replaced" if file.exists() else "new")
        elif verbose and self.trainer.is_global_zero:
            scores = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            notes = getattr(self.model, "notes", {})
            print_text(score_table(scores, notes))
            if sentence := notes.get("chance"):
                print_text(sentence)
            if self._writes():
                print_text(f"written to {file}")

    def _print_dry_run(self, path: Path, state: str) -> None:
        """Print the model, and what the command would write."""
        if self.trainer.is_global_zero:
            model = self.model.model
            count = sum(parameter.numel() for parameter in model.parameters())
            print_text(
                f"visattn {self.subcommand}, dry run: one batch of each split was processed, "
                f"nothing is written\n{type(model).__name__}, {count:,} parameters; would write "
                f"{path} ({state})"
            )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with logs, checkpoints and scores in the folder of the run."""
        config = self.config_init[str(self.subcommand)]
        fitting = self.subcommand == "fit"
        options = config.trainer
        if options.logger is None:
            kwargs["logger"] = self._loggers() if fitting else False
        callbacks = [ScoreWriter(self.run_dir), RunRecorder(self.run_dir, self._source())]
        named = options.callbacks or []
        if options.enable_progress_bar is not False:
            own = any(isinstance(callback, ProgressBar) for callback in named)
            callbacks += [] if own else [StepBar()]
        if fitting:
            prepare_callbacks(named, self.model, self.run_dir / "checkpoints")
            callbacks += [SkipNonFiniteSteps(config.max_nonfinite_steps), *named]
            callbacks += [] if options.enable_checkpointing is False else self._checkpoints()
        else:
            callbacks += [ExitOnSignal()]
            kwargs["enable_checkpointing"] = False
        trainer = super().instantiate_trainer(
            default_root_dir=str(self.run_dir),
            # The data modules give each process its share; Lightning's sampler would repeat
            # samples.
            use_distributed_sampler=False,
            callbacks=callbacks,
            plugins=options.plugins or [AtomicCheckpointIO()],
            **kwargs,
        )
        if trainer.strategy.root_device.type == "cuda":
            torch.set_float32_matmul_precision(config.float32_matmul_precision)
        if isinstance(trainer.strategy, DDPStrategy) and self.model.idle_parameters:
            trainer.strategy._ddp_kwargs.setdefault("find_unused_parameters", True)  # noqa: SLF001
        return trainer

    def _source(self) -> dict[str, Any]:
        """Return what `run.json` says about the settings."""
        config = self.config[str(self.subcommand)]
        if self.subcommand == "fit":
            files = config.get("config") or []
            name = Path(str(files[0])).stem if files else None
            return {"config": name, "seed": config.seed_everything}
        try:
            trained = yaml.safe_load(run_config(self.run_dir).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, yaml.YAMLError):
            return {}  # a checkpoint without a readable config beside it
        data = trained.get("data") if isinstance(trained, dict) else None
        return {"data": changes({"data": config.data.as_dict()}, {"data": data})}

    def _loggers(self) -> list[TensorBoardLogger | CSVLogger]:
        number = len(list(self.run_dir.glob("csv-*"))) + 1  # a resumed run keeps its old tables
        return [
            TensorBoardLogger(self.run_dir, name="", version=""),
            CSVLogger(self.run_dir, name="", version=f"csv-{number}"),
        ]

    def _checkpoints(self) -> list[Callback]:
        check_monitor(self.model)
        config = self.config_init["fit"]
        monitor, mode = self.model.monitor
        folder = self.run_dir / "checkpoints"
        best = BestCheckpoint(folder, monitor=monitor, mode=mode)
        last = LastCheckpoint(folder, steps=config.save_steps, minutes=config.save_minutes)
        return [MonitorFallback(best), best, last]

    def after_fit(self) -> None:
        """Print where the run and its best checkpoint are."""
        if self.dry_run:
            resumed = (self.run_dir / "checkpoints").is_dir()
            self._print_dry_run(self.run_dir, "resumed" if resumed else "new")
        if not self.trainer.is_global_zero or not self._writes():
            return
        print_text(f"run: {self.run_dir}")
        callbacks = self.trainer.checkpoint_callbacks
        best = next((own for own in callbacks if isinstance(own, BestCheckpoint)), None)
        if best is not None and best.best_model_path:
            score = f"{best.monitor} {float(best.best_model_score or 0):.4f}"
            print_text(f"best checkpoint ({score}): {best.best_model_path}")
        elif (last := self.run_dir / "checkpoints" / "last.ckpt").is_file():
            print_text(f"last checkpoint (none was selected as best): {last}")

    def _writes(self) -> bool:
        return not getattr(self.trainer, "fast_dev_run", False)


def _is_rank_zero() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0
