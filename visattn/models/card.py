"""Model cards: the page of a model on the Hugging Face hub, in Markdown."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from visattn.models.config import model_config
from visattn.models.model_files import run_config

# tasks, as named on the Hugging Face hub
_TASKS = {
    "Captioner": "image-to-text",
    "VQAModel": "visual-question-answering",
    "DETR": "object-detection",
    "UNet": "image-segmentation",
    "ImageClassifier": "image-classification",
    "ImageEncoder": "image-feature-extraction",
}


def model_card(
    model: nn.Module,
    name: str,
    *,
    summary: str = "",
    license: str = "",  # noqa: A002 (the hub's name)
    run: Path | None = None,
) -> str:
    """Return the card of a model: summary, usage, architecture, training config and scores.

    Args:
        model: The model.
        name: Name for `visattn.load`.
        summary: Task, training data and limitations.
        license: Identifier of the license of the weights, such as `apache-2.0`.
        run: Folder of the run, whose config and test scores are on the card.
    """
    tasks = [_TASKS[each.__name__] for each in type(model).__mro__ if each.__name__ in _TASKS]
    lines = ["---", "library_name: visattn", *(f"pipeline_tag: {task}" for task in tasks[:1])]
    lines += [f"license: {license}"] if license else []
    lines += ["tags:", "- visattn", "- attention", "---", "", f"# {name}", "", summary, ""]
    config = json.dumps(_without_long_lists(model_config(model)), indent=1, ensure_ascii=False)
    sections = {"Use": ("python", f'import visattn as va\n\nmodel = va.load("{name}")')}
    sections["Model"] = ("json", config)
    if run is not None and (run / "test.json").is_file():
        sections["Test scores"] = ("json", (run / "test.json").read_text("utf-8").strip())
    if run is not None and any(run.glob("config*.yaml")):
        settings = run_config(run).read_text("utf-8").splitlines()
        kept = [line for line in settings if not line.endswith(": null")]
        sections["Training config"] = ("yaml", "\n".join(kept))
    for title, (language, text) in sections.items():
        lines += [f"## {title}", "", f"```{language}", text, "```", ""]
    return "\n".join([*lines, f"Written by visattn {version('visattn')}.", ""])


def _without_long_lists(value: Any) -> Any:
    """Return a config with the number of words or classes in place of long lists."""
    if isinstance(value, dict):
        return {key: _without_long_lists(each) for key, each in value.items()}
    return f"{len(value)} values" if isinstance(value, list) and len(value) > 12 else value
