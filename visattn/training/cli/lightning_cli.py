"""`visattn fit`, `validate` and `test`: Lightning's command line, its silent faults cured."""

import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

# Classes that are imported can be named by their class name alone in a config.
import visattn.models.serialization.config
import visattn.training.callbacks.ema
import visattn.training.callbacks.image_logging
import visattn.training.data.captions
import visattn.training.data.classification
import visattn.training.data.cluttered_mnist
import visattn.training.data.folder
import visattn.training.data.scenes
import visattn.training.data.shards
import visattn.training.data.single_object_scenes
import visattn.training.data.torchvision
import visattn.training.data.webdataset
import visattn.training.tasks.caption_scst
import visattn.training.tasks.captioning
import visattn.training.tasks.classification
import visattn.training.tasks.glimpse  # noqa: F401
from visattn.training.base import DataModule, Task
from visattn.training.callbacks.best_checkpoint import BestCheckpoint
from visattn.training.callbacks.last_checkpoint import LastCheckpoint
from visattn.training.callbacks.monitor import MonitorFallback, check_monitor
from visattn.training.callbacks.nonfinite_guard import SkipNonFiniteSteps
from visattn.training.callbacks.progress_bar import progress_callback
from visattn.training.callbacks.progress_lines import SECONDS
from visattn.training.callbacks.signals import LeaveAtSignal
from visattn.training.checkpoint.atomic_writer import AtomicCheckpointIO
from visattn.training.checkpoint.reader import read_checkpoint, read_progress
from visattn.training.checkpoint.resume_checks import check_resumable
from visattn.training.cli.errors import errors_told
from visattn.training.cli.import_allowlist import trust_only_known_packages
from visattn.training.cli.parser import Parser
from visattn.training.cli.score_table import score_table
from visattn.training.cli.trainer_checks import check_trainer
from visattn.training.cli.variables import expanded
from visattn.training.distributed.launcher import TIMEOUT, keep_watch
from visattn.training.distributed.peers import PeerMonitor, losses_told
from visattn.training.run_dir.checkpoints import find_resume_point, set_aside
from visattn.training.run_dir.create import (
    ScoresFile,
    claim,
    held,
    latest_run,
    next_run,
    refuse_taken,
)
from visattn.training.run_dir.find import run_of

# option: (type, default, what it is for)
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "run": (str | None, None, "folder of the run (runs/CONFIG/NUMBER)"),
    "save_minutes": (float, 10.0, "fit: write last.ckpt at least so often; 0 for never in between"),
    "save_steps": (int, 0, "fit: write last.ckpt after each so many steps as well"),
    "bad_steps": (int, 10, "fit: stop after so many steps in a row without a finite gradient"),
    "timeout": (float, TIMEOUT, "seconds that processes wait for each other"),
    "progress_seconds": (float, SECONDS, "without a terminal: seconds between lines of progress"),
}


def main(argv: Sequence[str], *, kind: "type[TrainingCLI] | None" = None) -> int:
    """Train, validate or test, as the command line and its YAML files say.

    Args:
        argv: `fit`, `validate` or `test`, and its options.
        kind: What does the work, where it is not `TrainingCLI` itself.
    """
    trust_only_known_packages()
    quieten()
    # LightningCLI warns when it gets words of its own; other processes are started like this one.
    given, sys.argv = sys.argv, [sys.argv[0], *argv]
    try:
        with losses_told(), errors_told():
            (kind or TrainingCLI)(
                Task,
                DataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=42,
                parser_class=Parser,
                parser_kwargs={"prog": "visattn"},
            )
    except SystemExit as stop:  # Lightning's word for Ctrl-C, where no step was to be finished
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise
    finally:
        sys.argv = given
    return 0


def quieten() -> None:
    """Leave out what Lightning says of itself: advertisements, and doubts of what was asked for."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "Tip:" not in record.getMessage()
    )
    for said in (
        "Be aware that when using `ckpt_path`",  # a score needs the weights alone
        "Checkpoint directory .* is not empty",  # the run goes on
        "Found .* in eval mode",  # they are frozen
        ".*does not have many workers",
        "Total length of `list` across ranks is zero",  # there are no validation data
        "`isinstance",
    ):
        warnings.filterwarnings("ignore", said, module="lightning")


class TrainingCLI(LightningCLI):
    """A checkpoint gives weights, never settings; a run has a folder; nothing is overwritten."""

    run: Path
    """The folder of this run."""
    going_on: Path | None = None
    """The checkpoint that it goes on from."""
    unusable: tuple[Path, ...] = ()
    """Damaged checkpoints in its folder, which it may not overwrite."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the word that is typed: a parser of each other one takes as long again."""
        words = LightningCLI.subcommands()
        more = {"weights_only"}  # nobody can ask for anything else
        del words["predict"]  # captioning images is a command of its own
        typed = [word for word in sys.argv[1:2] if word in words]
        return {word: words[word] | more for word in typed or words}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add our options, and tell the task what the data knows."""
        for name, (kind, default, told) in OPTIONS.items():
            parser.add_argument(f"--{name}", type=kind, default=default, help=told)
        parser.link_arguments("data.data_info", "model.init_args.data_info", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Do not open the checkpoint for settings: the command line and the config have them."""

    def before_instantiate_classes(self) -> None:
        """Refuse to score random weights, and choose the folder of the run."""
        asked = self.config[str(self.subcommand)]
        for key in list(asked.keys()):
            asked[key] = expanded(asked[key])
        check_trainer(asked.trainer, fitting=self.subcommand == "fit")
        checkpoint = asked.get("ckpt_path")
        if self.subcommand != "fit":
            self.save_config_callback = None
            if not checkpoint:
                self.parser.error(
                    f"{self.subcommand} needs --ckpt_path FILE: without it the weights are random"
                )
            read_checkpoint(checkpoint)  # or say in one line what is wrong with it
        self.run = self._run_folder(asked, checkpoint)
        if self.subcommand == "fit" and checkpoint:
            self._go_on(checkpoint, branching=bool(asked.run))
        elif self.subcommand == "fit" and asked.run and _is_first():
            refuse_taken(self.run, f"--ckpt_path {self.run}/checkpoints/last.ckpt")

    def _run_folder(self, asked: Any, checkpoint: str | None) -> Path:
        if asked.run:
            return Path(asked.run)
        if checkpoint and Path(checkpoint).is_file():
            return run_of(Path(checkpoint))
        configs = asked.get("config") or []
        name = Path(str(configs[0])).stem if configs else "unnamed"
        return latest_run(name) if checkpoint in ("last", "best") else next_run(name)

    def _go_on(self, checkpoint: str, *, branching: bool) -> None:
        """Find what the run goes on from; neither another run nor its own later steps are lost."""
        count = len(list(self.run.glob("config*.yaml"))) + 1  # it keeps its first config
        name = f"config-{count}.yaml" if count > 1 else "config.yaml"
        self.save_config_kwargs["config_filename"] = name
        newest = find_resume_point(self.run)
        self.going_on, self.unusable = newest.file, newest.unusable
        if checkpoint == "last":
            return
        named = self.run / "checkpoints" / "best.ckpt" if checkpoint == "best" else Path(checkpoint)
        check_resumable(read_checkpoint(named), named)
        done, self.going_on = read_progress(named).step, named
        if branching and run_of(named).resolve() != self.run.resolve():
            if _is_first():
                refuse_taken(self.run, f"--ckpt_path last --run {self.run}")
        elif newest.file and (further := newest.progress.step) > done:
            raise FileExistsError(
                f"{named} is of step {done}, and the run goes on to step {further}, which would be "
                f"overwritten; say --ckpt_path last --run {self.run}, or another --run for a run "
                "that goes on from here"
            )

    def fit(self, **given: Any) -> None:
        """Train, in a folder that is held by this run alone."""
        with ExitStack() as kept:
            if _is_first() and not getattr(self.trainer, "fast_dev_run", False):
                claim(self.run, new=self.config["fit"].get("ckpt_path") is None)
                kept.enter_context(held(self.run))
                set_aside(self.unusable, self.run)
            if given.get("ckpt_path"):
                told = f"goes on from {self.going_on}" if self.going_on else "starts afresh"
                rank_zero_info(f"{self.run} {told}")
            given["ckpt_path"] = self.going_on and str(self.going_on)
            try:
                self.trainer.fit(**given)
            except FloatingPointError as error:  # what was trained made it so, not a fault of ours
                raise ValueError(str(error)) from error

    def validate(self, **given: Any) -> None:
        """Score the validation split, and print its scores as one table."""
        self._score("validate", given)

    def test(self, **given: Any) -> None:
        """Score the test split, and print its scores as one table."""
        self._score("test", given)

    def _score(self, word: str, given: dict[str, Any]) -> None:
        verbose = given.pop("verbose", True)
        getattr(self.trainer, word)(**given, verbose=False)
        if verbose and self.trainer.is_global_zero:
            scores = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            notes = getattr(self.model, "notes", {})
            print(score_table(scores, notes))  # noqa: T201
            if sentence := notes.get("chance"):
                print(sentence)  # noqa: T201
            if not getattr(self.trainer, "fast_dev_run", False):
                print(f"written to {self.run / f'{word}.json'}")  # noqa: T201

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with the run's logs, checkpoints and scores in its folder."""
        asked, fitting = self.config_init[str(self.subcommand)], self.subcommand == "fit"
        given = asked.trainer
        if given.logger is None:
            kwargs["logger"] = self._loggers() if fitting else False
        bar = progress_callback(given, seconds=asked.progress_seconds)
        kwargs["callbacks"] = [ScoresFile(self.run), PeerMonitor(), *([bar] if bar else [])]
        if fitting:
            kwargs["callbacks"] += [SkipNonFiniteSteps(asked.bad_steps), *(given.callbacks or [])]
            kwargs["callbacks"] += (
                [] if given.enable_checkpointing is False else self._checkpoints()
            )
        else:
            kwargs["callbacks"] += [LeaveAtSignal()]
            kwargs["enable_checkpointing"] = False
        kwargs["plugins"] = given.plugins or [AtomicCheckpointIO()]
        trainer = super().instantiate_trainer(
            default_root_dir=str(self.run), use_distributed_sampler=False, **kwargs
        )
        idle = getattr(self.model, "idle_parameters", False)
        keep_watch(trainer.strategy, seconds=asked.timeout, idle=idle)
        return trainer

    def _loggers(self) -> list[TensorBoardLogger | CSVLogger]:
        tables = len(list(self.run.glob("csv-*"))) + 1  # a run that goes on keeps its old table
        return [
            TensorBoardLogger(self.run, name="", version=""),
            CSVLogger(self.run, name="", version=f"csv-{tables}"),
        ]

    def _checkpoints(self) -> list[Callback]:
        """Keep the best and the last."""
        check_monitor(self.model)
        asked, (score, mode) = self.config_init["fit"], self.model.monitor
        folder = self.run / "checkpoints"
        best = BestCheckpoint(folder, monitor=score, mode=mode)
        last = LastCheckpoint(folder, steps=asked.save_steps, minutes=asked.save_minutes)
        return [MonitorFallback(best), best, last]

    def after_fit(self) -> None:
        """Say where everything lies."""
        if not self.trainer.is_global_zero or getattr(self.trainer, "fast_dev_run", False):
            return
        print(f"run: {self.run}")  # noqa: T201
        best = self.trainer.checkpoint_callback
        if isinstance(best, ModelCheckpoint) and best.best_model_path:
            score = f"{best.monitor} {float(best.best_model_score or 0):.4f}"
            print(f"best checkpoint ({score}): {best.best_model_path}")  # noqa: T201
        elif (last := self.run / "checkpoints" / "last.ckpt").is_file():
            print(f"last checkpoint (none was chosen as the best): {last}")  # noqa: T201


def _is_first() -> bool:
    """Return whether this is the first of the processes of a run, or the only one."""
    return getattr(rank_zero_only, "rank", 0) == 0
