"""Job of a command whose model is one of visattn, or also one of transformers."""

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

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model on its device; return it with its file or name.

        Raises:
            FileNotFoundError: If a file, directory or run does not exist.
            ValueError: If it is a model of another kind, or an option does not fit it.
        """
        self.model: Any
        if is_transformers(self.args.model):
            directory = transformers_directory(self.args.model)
            self.model, self.processor = self.load_transformers(directory)
            self.weights = str(directory)
            move_to_device(self.model, self.args.device)
            return self.model, self.args.model
        module, _, name = self.kind.partition(":")
        kind = getattr(import_module(module), name)
        self.model, self.weights = load_trained_model(self.args, kind, self.noun)
        self.check_model()
        return self.model, self.weights

    def load_transformers(self, directory: Path) -> "tuple[nn.Module, Any]":
        """Return a model of transformers and its processor, for commands that take one.

        Args:
            directory: Where both are saved.
        """
        raise NotImplementedError

    def check_model(self) -> None:
        """Refuse options that do not fit the model of visattn, and set it up by them."""

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        options = {name: getattr(self.args, name) for name in self.options}
        return {**model_settings(self.args, self.weights), **options}
