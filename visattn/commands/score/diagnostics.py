"""What the attention of a model is like, as numbers and as a plot."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.folders import png, write_whole

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.metrics.maps.attention_stats import LayerDiagnostics
    from visattn.pipelines.evaluate_maps import MapEvaluator
    from visattn.recording.model_info import ExplainedModel


def write_diagnostics(
    trials: "MapEvaluator", images: Sequence[Path], folder: Path, batch: int
) -> list[str]:
    """Write diagnostics.json and diagnostics.png; return a table to print.

    Args:
        trials: With the model and how images come into it.
        images: Files.
        folder: To write into.
        batch: Images at a time.

    Raises:
        ValueError: If the model has no attention that could be seen.
        OSError: If a file cannot be written.
    """
    from visattn.metrics.maps.attention_stats import diagnosed_layers
    from visattn.pipelines.inputs import prepared
    from visattn.viz.plots.attention_stats import diagnostic_plot

    starts = range(0, len(images), batch)
    inputs = (
        prepared(
            trials.subject,
            images[start : start + batch],
            transform=trials.transform,
            fit=trials.fit,
        ).inputs
        for start in starts
    )
    layers = diagnosed_layers(trials.subject, inputs)
    told = {"images": len(images), "layers": [layer.to_dict() for layer in layers]}
    content = json.dumps(told, indent=1, allow_nan=False).encode() + b"\n"
    write_whole(folder / "diagnostics.json", content)
    measures = [
        {name: values.cpu().numpy() for name, values in layer.measures().items()}
        for layer in layers
    ]
    write_whole(folder / "diagnostics.png", png(diagnostic_plot(measures)))
    return list(_table(layers, trials.subject))


def _table(layers: "Sequence[LayerDiagnostics]", subject: "ExplainedModel") -> Iterator[str]:
    """Yield a line for each layer, with means over its heads."""
    names = list(dict.fromkeys(name for layer in layers for name in layer.measures()))
    width = max(len(layer.site) for layer in layers) + 1
    yield f"attention of {subject.card.name}, means over heads"
    wide = max(len(name) for name in names) + 2
    yield " " * width + "".join(f"{name:>{wide}}" for name in names)
    for layer in layers:
        found = layer.measures()
        cells = (
            f"{float(found[name].mean()):{wide}.3f}" if name in found else f"{'-':>{wide}}"
            for name in names
        )
        yield f"{layer.site:{width}}" + "".join(cells)
