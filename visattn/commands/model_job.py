"""Job of a command whose model is one of visattn."""

import argparse
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from visattn.commands.model_option import load_trained_model, model_settings
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
    model: Any
    weights: str
    """Origin of the weights."""

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, and check it."""
        module, _, name = self.kind.partition(":")
        kind = getattr(import_module(module), name)
        self.model, self.weights = load_trained_model(self.args, kind, self.noun)
        self.check_model(self.model, self.weights, self.args)
        return self.model, self.weights

    @classmethod
    def check_model(cls, model: Any, weights: str, args: argparse.Namespace) -> None:
        """Refuse options that do not fit the model of visattn, and set it up by them."""

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        options = {name: getattr(self.args, name) for name in self.options}
        figures = figure_settings(self.args) if "width" in self.args else {}
        return {**model_settings(self.args, self.weights), **options, **figures}
