"""Job of a command whose model is one of visattn, or also one of transformers."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from visattn.commands.model_option import (
    is_transformers,
    load_trained_model,
    model_settings,
    move_to_device,
    transformers_directory,
)
from visattn.commands.options import figure_settings
from visattn.commands.run import Job

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from torch import nn

Result = TypeVar("Result")


class ModelJob(Job[Result]):
    """What a command does to each image with the model of `--model`."""

    kind: str
    """Class of models of visattn, as `module:Class`."""
    noun: str
    """What the command calls such a model, with its article."""
    options: tuple[str, ...] = ()
    """Options on which results depend."""
    processor: Any = None
    """Processor of a model of transformers."""
    model: Any
    weights: str
    """Origin of the weights."""

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, one of visattn or of transformers."""
        if is_transformers(self.args.model):
            directory = transformers_directory(self.args.model)
            self.model, self.processor = self.load_transformers(directory)
            self.weights = str(directory)
            self.resizes = False  # the processor does
            if getattr(self.args, "device_map", None) is None:
                move_to_device(self.model, self.args.device)
            return self.model, self.args.model
        self.model, self.weights = self.load_own(self.args)
        return self.model, self.weights

    @classmethod
    def load_own(cls, args: argparse.Namespace) -> "tuple[Any, str]":
        """Return the model of visattn and the origin of its weights.

        Args:
            args: Options of the command.
        """
        module, _, name = cls.kind.partition(":")
        model, weights = load_trained_model(args, getattr(import_module(module), name), cls.noun)
        cls.check_model(model, weights, args)
        return model, weights

    def load_transformers(self, directory: Path) -> "tuple[nn.Module, Any]":
        """Return a model of transformers and its processor, for commands that take one.

        Args:
            directory: Where both are saved.

        Raises:
            ValueError: If the command takes none.
        """
        raise ValueError(
            f"visattn {self.command} takes {self.noun} of visattn, got a model of transformers in "
            f"{directory}"
        )

    @classmethod
    def check_model(cls, model: Any, weights: str, args: argparse.Namespace) -> None:
        """Refuse options that do not fit the model of visattn, and set it up by them."""

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        options = {name: getattr(self.args, name) for name in self.options}
        figures = figure_settings(self.args) if "width" in self.args else {}
        return {**model_settings(self.args, self.weights), **options, **figures}
