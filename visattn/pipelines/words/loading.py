"""Loading of vision-language models with their processors from a directory."""

from pathlib import Path
from typing import Any

from torch import nn

from visattn.models.backbones.huggingface import read_huggingface_model


def load_word_model(
    directory: Path, *, answers: bool = False, **loading: Any
) -> tuple[nn.Module, Any, tuple[str, ...]]:
    """Return a model of transformers that generates text from images, its processor, and notes.

    Nothing is downloaded, and no code of the directory is executed.

    Args:
        directory: Directory as written by `save_pretrained` of model and processor, or of model,
            image processor and tokenizer.
        answers: Whether the model may also be one that chooses among answers, as ViLT does.
        loading: Options of `from_pretrained`, such as `dtype` and `device_map`.

    Raises:
        FileNotFoundError: If the directory has no config.json.
        ImportError: If transformers is not installed, or accelerate for a `device_map`.
        ValueError: If the model cannot be built or does not generate text, or there is no
            processor.
    """
    library, config, model = read_huggingface_model(directory, **loading)
    chooses = answers and type(model).__name__.endswith("ForQuestionAnswering")
    if not (chooses or callable(getattr(model, "generate", None))):
        raise ValueError(f"{directory} holds a {type(model).__name__}, which generates no text")
    notes = ("the code in the model directory is not executed",) if config.get("auto_map") else ()
    return model.eval(), _load_processor(library, directory), notes


def _load_processor(library: Any, directory: Path) -> Any:
    """Return the processor of a directory, or its image processor and tokenizer."""
    errors: list[str] = []
    try:
        processor = _from_pretrained(library.AutoProcessor, directory)
        if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
            return processor
    except Exception as error:  # a file with values of wrong types raises anything
        errors.append(_first_line(error))
        if isinstance(error, ImportError) or (directory / "processor_config.json").is_file():
            raise ValueError(
                f"the processor in {directory} cannot be loaded: {errors[0]}"
            ) from error
    parts: list[Any] = []
    for name, auto_class in (
        ("image processor", library.AutoImageProcessor),
        ("tokenizer", library.AutoTokenizer),
    ):
        try:
            parts.append(_from_pretrained(auto_class, directory))
        except Exception as error:
            reason = (errors or [_first_line(error)])[0]
            raise ValueError(
                f"{directory} has no {name} that can be loaded; save it there with "
                f"processor.save_pretrained ({reason})"
            ) from error
    return tuple(parts)


def _from_pretrained(auto_processor: Any, directory: Path) -> Any:
    AutoProcessor = auto_processor  # noqa: N806 (a class)
    return AutoProcessor.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
