"""Statistics of the attention of a model, as JSON, as a plot and as a table."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from visattn.io.sources import Source

if TYPE_CHECKING:
    from visattn.commands.score.evaluate_maps import MapEvaluator
    from visattn.metrics.attention_stats import LayerDiagnostics
    from visattn.recording.subject import Subject


DIAGNOSTICS: tuple[str, ...] = ("diagnostics.json", "diagnostics.png")


def diagnose(
    evaluator: "MapEvaluator", images: Sequence[Source], batch_size: int
) -> tuple[dict[str, bytes], list[str]]:
    """Return the content of the files of `DIAGNOSTICS`, and the lines of a table.

    Args:
        evaluator: Holds the model and its preprocessing.
        images: Image files.
        batch_size: Images per batch.

    Raises:
        ValueError: If the attention of the model cannot be recorded.
    """
    from visattn.metrics.attention_stats import diagnose_layers
    from visattn.viz.attention_stats import plot_attention_stats
    from visattn.viz.figures import png

    inputs = (
        evaluator.explainer.prepare(images[start : start + batch_size]).inputs
        for start in range(0, len(images), batch_size)
    )
    layers = diagnose_layers(evaluator.explained, inputs)
    record = {"images": len(images), "layers": [layer.to_dict() for layer in layers]}
    content = json.dumps(record, indent=1, allow_nan=False).encode() + b"\n"
    measures = [
        {name: values.cpu().numpy() for name, values in layer.measures().items()}
        for layer in layers
    ]
    plot = png(plot_attention_stats(measures))
    files: dict[str, bytes] = dict(zip(DIAGNOSTICS, (content, plot), strict=True))
    return files, list(_table(layers, evaluator.explained))


def _table(layers: "Sequence[LayerDiagnostics]", explained: "Subject") -> Iterator[str]:
    """Yield a line per layer with means over its heads."""
    names = list(dict.fromkeys(name for layer in layers for name in layer.measures()))
    site_width = max(len(layer.site) for layer in layers) + 1
    yield f"attention of {explained.info.name}, means over heads"
    width = max(len(name) for name in names) + 2
    yield " " * site_width + "".join(f"{name:>{width}}" for name in names)
    for layer in layers:
        measures = layer.measures()
        cells = (
            f"{float(measures[name].mean()):{width}.3f}" if name in measures else f"{'-':>{width}}"
            for name in names
        )
        yield f"{layer.site:{site_width}}" + "".join(cells)
