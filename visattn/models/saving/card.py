"""Model cards: a page in Markdown beside a model file, as the Hugging Face hub shows it."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from PIL import Image
from torch import nn

from visattn.images.reader import ImageLike, read_image
from visattn.io.safe_text import read_json
from visattn.models.saving.config import model_config
from visattn.models.saving.runs import find_run, run_config

_IS_DEFAULT_OR_PATH = re.compile(r".*: null$|(run|ckpt_path):")  # lines of the config of a run
# What models do, by the names that the Hugging Face hub gives tasks.
_TASKS = {
    "Captioner": "image-to-text",
    "DETR": "object-detection",
    "ImageClassifier": "image-classification",
    "ImageEncoder": "image-feature-extraction",
    "UNet": "image-segmentation",
    "VQAModel": "visual-question-answering",
}
_MAX_VALUES = 12  # longer lists of a config are counted, not printed


@dataclass(frozen=True, eq=False)
class ModelCard:
    """Model card: summary, test scores, training config and an example image of a model.

    Args:
        summary: What the model does, what it was trained on, and what it cannot do.
        scores: Test scores by name.
        config: Training config, as YAML text.
        image: Example image, such as a figure of the output of the model.
        license: Identifier of the license of the weights, such as `apache-2.0`.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> card = ModelCard("Features of scenes.", {"accuracy": 0.91})
        >>> print(card.to_markdown(SmallEncoder((24, 24), channels=8), "user/encoder"))
        ---
        library_name: visattn
        pipeline_tag: image-feature-extraction
        ...
        | accuracy | 0.91 |
        ...
    """

    summary: str = ""
    scores: Mapping[str, float | str | None] = field(default_factory=dict[str, float | str | None])
    config: str = ""
    image: ImageLike | None = None
    license: str = ""

    @classmethod
    def from_run(cls, run: Path | str, summary: str = "", **options: Any) -> "ModelCard":
        """Return the card of a training run: its config, and its scores if it was tested.

        Settings without a value and the folder of the run are left out of the config.

        Args:
            run: Folder of the run, as `visattn fit` wrote it.
            summary: As in the constructor.
            options: `image` and `license`, as in the constructor.

        Raises:
            FileNotFoundError: If there is no such run, or it has no config.
            ValueError: If the folder holds several runs.
        """
        folder = find_run(Path(run).expanduser())
        file = folder / "test.json"
        record = read_json(file) if file.is_file() else {}
        scores = {name: value for name, value in record.items() if not isinstance(value, str)}
        lines = run_config(folder).read_text().splitlines()
        config = "\n".join(line for line in lines if not _IS_DEFAULT_OR_PATH.match(line))
        return cls(summary, scores, config, **options)

    def to_markdown(self, model: nn.Module, name: str, *, image: str = "") -> str:
        """Return the card as a page.

        Args:
            model: The model that it describes.
            name: Name with which `visattn.load` loads the model.
            image: Address of the example image on the page.
        """
        return "\n".join(
            [
                *self._front_matter(model),
                *(f"# {name.removeprefix('hf://')}", ""),
                *((self.summary, "") if self.summary else ()),
                *((f"![example]({image})", "") if image else ()),
                *("```python", "import visattn as va", "", f'model = va.load("{name}")', "```", ""),
                *_describe(model),
                *_table("Test scores", "score", self.scores),
                *(("## Training config", "", "```yaml", self.config.rstrip(), "```", ""))
                * bool(self.config),
                f"Written by visattn {version('visattn')}.",
                "",
            ]
        )

    def encode_image(self) -> bytes | None:
        """Return the example image as PNG, or None if there is none.

        Raises:
            ImageError: If the image cannot be read.
        """
        if self.image is None:
            return None
        buffer = io.BytesIO()
        Image.fromarray(read_image(self.image).pixels).save(buffer, "png", optimize=True)
        return buffer.getvalue()

    def _front_matter(self, model: nn.Module) -> Iterator[str]:
        names = (kind.__name__ for kind in type(model).__mro__)
        tag = next((_TASKS[name] for name in names if name in _TASKS), "")
        yield from ("---", "library_name: visattn")
        yield from (f"pipeline_tag: {tag}",) * bool(tag)
        yield from (f"license: {self.license}",) * bool(self.license)
        yield from ("tags:", "- visattn", "- attention", "---", "")


def _describe(model: nn.Module) -> Iterator[str]:
    """Yield the section about the architecture: class, size and arguments."""
    config = model_config(model)
    count = sum(parameter.numel() for parameter in model.parameters())
    size = " x ".join(map(str, cast("Any", getattr(model, "encoder", model)).img_size))
    yield from ("## Model", "")
    yield from (f"`{config['class']}`, {count:,} parameters, images of {size} pixels.", "")
    yield from _table("", "argument", dict(_flat_arguments(config["arguments"])))


def _table(title: str, head: str, rows: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section with a table of two columns; nothing if there are no rows."""
    if rows:
        yield from (f"## {title}", "") * bool(title)
        yield from (f"| {head} | value |", "|---|---|")
        for name, value in rows.items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            yield f"| {name} | {text.replace('|', '&#124;')} |"
        yield ""


def _flat_arguments(arguments: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values of arguments, those of parts of the model as `encoder.channels`."""
    for name, value in arguments.items():
        if isinstance(value, Mapping) and "class" in value:
            yield prefix + name, str(value["class"])
            yield from _flat_arguments(value["arguments"], f"{prefix}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            values = ", ".join(map(str, value))
            yield prefix + name, values if len(value) <= _MAX_VALUES else f"{len(value)} values"
        else:
            yield prefix + name, str(value)
