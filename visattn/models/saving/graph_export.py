"""Models as ONNX files and torch.export programs, with their attention maps as further outputs."""

import inspect
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.images.resize import ResizeMode
from visattn.io.atomic import atomic_replace
from visattn.io.safe_text import parse_json
from visattn.models.configurable import Configurable, ModelGraph

GRAPH_SUFFIXES = (".onnx", ".pt2")
METADATA_KEY = "visattn"
"""Key of the metadata, as JSON: `metadata_props` of ONNX, an extra file of a `.pt2` archive."""
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_CHECKED_BATCH = 3  # images of the check; the graph is traced with 2
_TOLERANCE = 1e-4


def export_graph(
    model: nn.Module, path: str | os.PathLike[str], *, resize_mode: ResizeMode = "crop"
) -> list[Path]:
    """Write a model as ONNX (`.onnx`) or as a torch.export program (`.pt2`), maps included.

    A Vision Transformer returns `logits` and the `attention` of its class token, a glimpse model
    `logits`, `locations` and `boxes`. A captioner gives two files: `NAME` computes the state before
    the first word, `NAME.step` reads a word, and returns the logits of the next one and the
    `attention` that it was predicted from. The number of images is free, their size is that of the
    model; images are RGB, uint8, 0 to 255.

    The metadata say how a photo becomes the input and where maps lie on it. Each file is run, and
    compared with the model, before it gets its name.

    Args:
        model: A trained model, on the CPU.
        path: Output file, `.onnx` or `.pt2`.
        resize_mode: How a photo gets the shape of the input: central `crop`, `squash` or `pad`; it
            is written into the metadata.

    Returns:
        The files.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime are missing.
        ValueError: If the suffix is another one, maps of the model cannot be exported, or the file
            does not compute what the model computes.

    Example:
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(("cat", "dog"), img_size=(14, 21), patch_size=7, embed_dim=8,
        ...     depth=1, num_heads=2).eval()
        >>> [file] = export_graph(model, getfixture("tmp_path") / "vit.pt2")
        >>> program, metadata = torch.export.load(file), read_graph_metadata(file)
        >>> logits, attention = program.module()(torch.zeros(5, 3, 14, 21, dtype=torch.uint8))
        >>> attention.shape, metadata["map"]["axes"]
        (torch.Size([5, 1, 2, 2, 3]), ['image', 'layer', 'head', 'y', 'x'])
    """
    out = Path(path)
    if out.suffix not in GRAPH_SUFFIXES:
        raise ValueError(f"the file must end in {' or '.join(GRAPH_SUFFIXES)}, got {out}")
    check_choice("resize_mode", resize_mode, get_args(ResizeMode))
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
    if out.suffix == ".onnx" and missing:
        raise ImportError(f"ONNX export needs {', '.join(missing)}: pip install 'visattn[onnx]'")
    written: list[Path] = []
    with torch.no_grad():
        for graph in _graphs(model.eval(), resize_mode):
            file = out.with_name(f"{out.stem}{graph.suffix}{out.suffix}")
            _write(graph, file)
            written.append(file)
    return written


def read_graph_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a `.pt2` file of `export_graph`.

    Those of an `.onnx` file are read without torch:
    `json.loads(session.get_modelmeta().custom_metadata_map["visattn"])`.

    Raises:
        ValueError: If the file holds no metadata.

    Example:
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=1, num_heads=2
        ... )
        >>> path = getfixture("tmp_path") / "model.pt2"
        >>> _ = export_graph(model, path)
        >>> read_graph_metadata(path)["model"]
        'VisionTransformer'
    """
    content = {METADATA_KEY: ""}
    torch.export.load(path, extra_files=content)
    if not content[METADATA_KEY]:
        raise ValueError(f"{path} has no metadata of visattn; visattn export writes them")
    return parse_json(content[METADATA_KEY])


def _graphs(model: nn.Module, resize_mode: ResizeMode) -> list[ModelGraph]:
    """Return the graphs of a model; refuse one whose maps cannot be exported."""
    name = type(model).__name__
    encoder = getattr(model, "encoder", model)
    base: dict[str, Any] = {
        "format": 1,
        "visattn": version("visattn"),
        "model": name,
        "input": {
            "size": list(getattr(encoder, "img_size", ())),
            "colors": "RGB",
            "dtype": "uint8",
            "resize_mode": resize_mode,
            "fill": round(255 * getattr(model, "pad_value", 0.0)),
        },
    }
    graphs = model.export_graphs() if isinstance(model, Configurable) else []
    if graphs:
        return [replace(graph, metadata={**base, **graph.metadata}) for graph in graphs]
    raise ValueError(
        f"the maps of a {name} cannot be exported; those of a VisionTransformer, a glimpse model "
        "and a captioner with an LSTM can. For the output alone call torch.onnx.export or "
        "torch.export.export on the model"
    )


def _write(graph: ModelGraph, file: Path) -> None:
    """Write a graph, and check the file before it gets its name."""
    batch = torch.export.Dim.DYNAMIC
    shapes: Any = tuple({0: batch} for _ in graph.inputs)
    if "inputs" in inspect.signature(graph.module.forward).parameters:
        shapes = (shapes,)  # of `*inputs`, one argument that takes them all
    # Another number of other examples shows that the batch axis is free.
    other = {
        name: torch.cat((value, value[:1]))[:_CHECKED_BATCH].flip(0)
        for name, value in graph.inputs.items()
    }
    metadata = json.dumps(dict(graph.metadata))
    expected = graph.module(*other.values())
    with atomic_replace(file) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about their own parts
        program = torch.export.export(
            graph.module, tuple(graph.inputs.values()), dynamic_shapes=shapes
        )
        if file.suffix == ".pt2":
            with part.open("wb") as stream:
                torch.export.save(program, stream, extra_files={METADATA_KEY: metadata})
            with part.open("rb") as stream:
                results = torch.export.load(stream).module()(*other.values())
        else:
            results = _write_onnx(program, graph, part, metadata, other)
        for name, result, value in zip(graph.outputs, results, expected, strict=True):
            difference = float((torch.as_tensor(result) - value).abs().max())
            if not difference <= _TOLERANCE * max(1.0, float(value.abs().max())):
                raise ValueError(
                    f"{file.name} does not compute what the model computes: {name} differs by "
                    f"{difference:.3g}; the file was not written"
                )


def _write_onnx(
    program: Any, graph: ModelGraph, part: Path, metadata: str, inputs: Mapping[str, Tensor]
) -> Sequence[Any]:
    """Write an ONNX file with its metadata; return its outputs."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    exported: Any = torch.onnx.export(
        program,
        (),
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamo=True,
        verbose=False,
    )
    exported.model.metadata_props[METADATA_KEY] = metadata
    exported.save(part, external_data=False)
    session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])
    feed = {name: value.numpy() for name, value in inputs.items()}
    return session.run(list(graph.outputs), feed)
