"""Loading of vision-language models with their processors from a directory."""

import importlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from visattn.models.backbones.huggingface import load_model_class, load_weights


def load_word_model(directory: Path) -> tuple[nn.Module, Any]:
    """Return a model of transformers that generates text from images, and its processor.

    Nothing is downloaded, and no code of the directory is executed.

    Args:
        directory: Directory as written by `save_pretrained` of model and processor.

    Raises:
        FileNotFoundError: If the directory has no config.json.
        ImportError: If transformers is not installed.
        ValueError: If the model cannot be built or does not generate text, or there is no
            processor.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} must be a directory with a config.json, as written by save_pretrained"
        )
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need transformers: pip install 'visattn[hf]'"
        ) from error
    config = json.loads((directory / "config.json").read_text())
    model = load_weights(load_model_class(library, config, directory), directory)
    if not callable(getattr(model, "generate", None)):
        raise ValueError(f"{directory} holds a {type(model).__name__}, which generates no text")  # noqa: TRY004 (the directory is wrong)
    try:
        processor = library.AutoProcessor.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{directory} needs a processor with image processor and tokenizer, as written by "
            f"processor.save_pretrained: {error}"
        ) from error
    return model.eval(), processor
