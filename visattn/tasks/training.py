"""`visattn fit`, `validate` and `test`: Lightning's command line, its silent faults cured."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

# Classes that are imported can be named in short in a config.
import visattn.models.descriptions
import visattn.tasks.averages
import visattn.tasks.caption_data
import visattn.tasks.captioning
import visattn.tasks.class_data
import visattn.tasks.classification
import visattn.tasks.crop_panels
import visattn.tasks.digit_data
import visattn.tasks.glimpsing
import visattn.tasks.panels
import visattn.tasks.scenes_data
import visattn.tasks.self_critical
import visattn.tasks.shape_data  # noqa: F401
from visattn.tasks.bases import Data, Task
from visattn.tasks.checkpoints import read_checkpoint
from visattn.tasks.parsers import Parser
from visattn.tasks.runs import ScoresFile, next_run, run_of
from visattn.tasks.variables import expanded

TRUSTED = (
    "visattn",
    "torch.optim",
    "torch.nn",
    "lightning.pytorch",
    "pytorch_lightning",
    "torchmetrics",
)


def main(argv: Sequence[str]) -> int:
    """Train, validate or test, as the command line and its YAML files say.

    Args:
        argv: `fit`, `validate` or `test`, and its options.
    """
    trust_only_known_packages()
    quieten()
    # LightningCLI warns when it gets words of its own; other processes are started like this one.
    given, sys.argv = sys.argv, [sys.argv[0], *argv]
    try:
        TrainingCLI(
            Task,
            Data,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=42,
            parser_class=Parser,
            parser_kwargs={"prog": "visattn"},
        )
    finally:
        sys.argv = given
    return 0


def trust_only_known_packages() -> None:
    """Let configs import from `TRUSTED`, and from what `VISATTN_TRUST_MODULES` names.

    It comes after the import of Lightning's command line, which opens what this closes again:
    reading configs from remote addresses.
    """
    named = [name for name in os.environ.get("VISATTN_TRUST_MODULES", "").split(",") if name]
    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[*TRUSTED, *named],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,
    )


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
        "`isinstance",
    ):
        warnings.filterwarnings("ignore", said, module="lightning")


class TrainingCLI(LightningCLI):
    """A checkpoint gives weights, never settings; a run has a folder; nothing is overwritten."""

    run: Path
    """The folder of this run."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the words: captioning pictures is a command of its own, not `predict`."""
        words = LightningCLI.subcommands()
        return {word: skipped for word, skipped in words.items() if word != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the folder of the run, and tell the task what the data knows."""
        parser.add_argument(
            "--run", type=str | None, default=None, help="folder of the run (runs/CONFIG/NUMBER)"
        )
        parser.link_arguments("data.data_info", "model.init_args.data_info", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Do not open the checkpoint for settings: the command line and the config have them."""

    def before_instantiate_classes(self) -> None:
        """Refuse to score random weights, and choose the folder of the run."""
        asked = self.config[str(self.subcommand)]
        for key in list(asked.keys()):
            asked[key] = expanded(asked[key])
        checkpoint, fitting = asked.get("ckpt_path"), self.subcommand == "fit"
        if not fitting:
            self.save_config_callback = None
            if not checkpoint:
                self.parser.error(
                    f"{self.subcommand} needs --ckpt_path FILE: without it the weights are random"
                )
        if checkpoint and not (fitting and checkpoint in ("last", "best")):
            read_checkpoint(checkpoint)  # or say in one line what is wrong with it
        self.run = self._run_folder(asked, checkpoint)
        if fitting and checkpoint:  # a run that goes on keeps its first config
            count = len(list(self.run.glob("config*.yaml"))) + 1
            name = f"config-{count}.yaml" if count > 1 else "config.yaml"
            self.save_config_kwargs["config_filename"] = name
        elif fitting and asked.run:
            self._refuse_a_taken_folder()

    def _refuse_a_taken_folder(self) -> None:
        """Keep two runs from sharing a folder; only the first of several processes looks."""
        if (
            getattr(rank_zero_only, "rank", 0) == 0
            and self.run.exists()
            and any(self.run.iterdir())
        ):
            raise FileExistsError(
                f"{self.run} already holds a run; choose another --run, remove the folder, or go "
                f"on with it by --ckpt_path {self.run}/checkpoints/last.ckpt"
            )

    def _run_folder(self, asked: Any, checkpoint: str | None) -> Path:
        if asked.run:
            return Path(asked.run)
        if checkpoint and Path(checkpoint).is_file():
            return run_of(Path(checkpoint))
        configs = asked.get("config") or []
        return next_run(Path(str(configs[0])).stem if configs else "unnamed")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with the run's logs, checkpoints and scores in its folder."""
        given = self.config_init[str(self.subcommand)].trainer
        fitting = self.subcommand == "fit"
        if given.logger is None:
            kwargs["logger"] = self._loggers() if fitting else False
        kwargs["callbacks"] = [ScoresFile(self.run)]
        if fitting:
            kwargs["callbacks"] += given.callbacks or []
            kwargs["callbacks"] += (
                [] if given.enable_checkpointing is False else self._checkpoints()
            )
        else:
            kwargs["enable_checkpointing"] = False
        return super().instantiate_trainer(
            default_root_dir=str(self.run), use_distributed_sampler=False, **kwargs
        )

    def _loggers(self) -> list[TensorBoardLogger | CSVLogger]:
        tables = len(list(self.run.glob("csv-*"))) + 1  # a run that goes on keeps its old table
        return [
            TensorBoardLogger(self.run, name="", version=""),
            CSVLogger(self.run, name="", version=f"csv-{tables}"),
        ]

    def _checkpoints(self) -> list[ModelCheckpoint]:
        """Keep the best and the last; `save_last` of the first would keep the last of the best.

        Both are kept after validation, from where Lightning goes on exactly; from the end of an
        epoch it would skip one.
        """
        score, mode = self.model.monitor
        folder = self.run / "checkpoints"
        blind = self.config_init[str(self.subcommand)].trainer.limit_val_batches == 0
        return [
            ModelCheckpoint(
                folder,
                "best",
                monitor=score,
                mode=mode,
                enable_version_counter=False,
                save_on_train_epoch_end=False,
            ),
            ModelCheckpoint(
                folder, "last", enable_version_counter=False, save_on_train_epoch_end=blind
            ),
        ]

    def after_fit(self) -> None:
        """Say where everything lies."""
        best = self.trainer.checkpoint_callback
        if (
            self.trainer.is_global_zero
            and isinstance(best, ModelCheckpoint)
            and best.best_model_path
        ):
            score = f"{best.monitor} {float(best.best_model_score or 0):.4f}"
            print(f"run: {self.run}\nbest checkpoint ({score}): {best.best_model_path}")  # noqa: T201
