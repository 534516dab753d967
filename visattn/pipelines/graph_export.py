"""Models as ONNX files and torch.export programs, with their attention maps as further outputs."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.images.resize import ResizeMode
from visattn.io.atomic import atomic_replace
from visattn.io.safe_text import parse_json
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.show_attend_tell import ShowAttendTell, has_hard_attention
from visattn.models.ram.glimpse_model import GlimpseModel
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.results.kinds import END, PAD, START, UNKNOWN

GRAPH_SUFFIXES = (".onnx", ".pt2")
METADATA_KEY = "visattn"
"""Key of the metadata, as JSON: `metadata_props` of ONNX, an extra file of a `.pt2` archive."""
LSTMCaptioner = ShowAttendTell | KnowingWhenToLook
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_CHECKED_BATCH = 3  # images of the check; the graph is traced with 2
_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class _Graph:
    """A graph to export: a module, the names of its tensors, and what they mean."""

    stem_suffix: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]


class _ClassRows(nn.Module):
    """A ViT with the attention of its class token as a second output."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: UInt8[Tensor, "b c y x"]) -> tuple[Tensor, Tensor]:
        """Return logits `[b, k]` and attention `[b, layer, head, y, x]`."""
        with self._class_rows() as rows:
            logits = self.model(images)
        return logits, torch.stack(rows, 1).unflatten(-1, self.model.grid_size)

    @contextmanager
    def _class_rows(self) -> Iterator[list[Tensor]]:
        """Yield a list that receives the rows of each layer; `record` cannot be traced."""
        rows: list[Tensor] = []
        num_prefix_tokens, request = len(self.model.prefix_roles), RecordRequest("class")

        def collect(_: nn.Module, __: Any, weights: Tensor) -> None:
            rows.append(weights[:, :, 0, num_prefix_tokens:])

        taps = [cast("Tap", cast("Any", layer).attn.tap) for layer in self.model.blocks]
        handles = [tap.register_forward_hook(collect) for tap in taps]
        for tap in taps:
            tap.requests.append(request)
        try:
            yield rows
        finally:
            for tap, handle in zip(taps, handles, strict=True):
                handle.remove()
                tap.requests.remove(request)


class _GreedyGlimpses(nn.Module):
    """A glimpse model with its locations and windows as further outputs."""

    def __init__(self, model: GlimpseModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: UInt8[Tensor, "b c y x"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits `[b, t, k]`, locations `[b, t, 2]` and boxes `[b, t, scale, 4]`."""
        rollout = self.model.rollout(self.model.normalize(images))
        locations = rollout.locations[:, 0]
        return rollout.logits[:, 0], locations, self.model.boxes(locations)


class _CaptionStart(nn.Module):
    """The encoder of a captioner, up to the state before the first word."""

    def __init__(self, model: LSTMCaptioner) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: UInt8[Tensor, "b c y x"]) -> tuple[Tensor, ...]:
        """Return the tensors of the state, in the order of its fields."""
        return tuple(_tensors(self.model.start(self.model.encoder(images))).values())


class _CaptionStep(nn.Module):
    """One decoding step of a captioner, with the attention of the word that it predicts."""

    def __init__(self, model: LSTMCaptioner, state: Any, changing: Sequence[str]) -> None:
        super().__init__()
        self.model, self.changing = model, changing
        self.state_class, self.names = type(state), tuple(_tensors(state))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return logits `[b, v]`, attention `[b, y, x]`, gate `[b]` and what changes of the state.

        Args:
            inputs: Tensors of the state, and the token `[b]`.
        """
        state = self.state_class(**dict(zip(self.names, inputs[:-1], strict=True)))
        logits, state, attention = self.model.step(state, inputs[-1][:, None])
        weights = attention.weights[:, 0].unflatten(-1, self.model.encoder.grid_size)
        changed = (getattr(state, name) for name in self.changing)
        return logits[:, 0], weights, attention.gate[:, 0], *changed


def _tensors(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a decoder state, by the name of their field."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


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
    if resize_mode not in get_args(ResizeMode):
        raise ValueError(f"resize_mode must be crop, squash or pad, got {resize_mode!r}")
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
    if out.suffix == ".onnx" and missing:
        raise ImportError(f"ONNX export needs {', '.join(missing)}: pip install 'visattn[onnx]'")
    written: list[Path] = []
    with torch.no_grad():
        for graph in _graphs(model.eval(), resize_mode):
            file = out.with_name(f"{out.stem}{graph.stem_suffix}{out.suffix}")
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


def _graphs(model: nn.Module, resize_mode: ResizeMode) -> list[_Graph]:
    """Return the graphs of a model; refuse one whose maps cannot be exported."""
    name, encoder = type(model).__name__, getattr(model, "encoder", model)
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
    if isinstance(model, VisionTransformer):
        return [_vit_graph(model, base)]
    if isinstance(model, GlimpseModel):
        return [_glimpse_graph(model, base)]
    if isinstance(model, LSTMCaptioner):
        return _caption_graphs(model, base)
    raise ValueError(
        f"the maps of a {name} cannot be exported; those of a VisionTransformer, a glimpse model "
        "and a captioner with an LSTM can. For the output alone call torch.onnx.export or "
        "torch.export.export on the model"
    )


def _vit_graph(model: VisionTransformer, base: dict[str, Any]) -> _Graph:
    if not model.class_token:
        raise ValueError(
            "the model must have a class token, whose attention is exported; this one pools by "
            f"{model.global_pool!r}: use visattn overlay --method rollout"
        )
    sides = zip(model.img_size, model.patch_embed.patch_size, strict=True)
    if any(length % side for length, side in sides):
        raise ValueError(
            f"img_size must be a multiple of the patch size, got {model.img_size}: the map would "
            "cover the padding, too"
        )
    axes = ["image", "layer", "head", "y", "x"]
    metadata = {
        **base,
        "class_names": list(model.class_names),
        "map": {"output": "attention", "axes": axes, "grid": list(model.grid_size)},
    }
    images = _example_images(model.img_size)
    return _Graph("", _ClassRows(model), {"images": images}, ("logits", "attention"), metadata)


def _glimpse_graph(model: GlimpseModel, base: dict[str, Any]) -> _Graph:
    if model.init_location == "random":
        raise ValueError(
            "the first location must not be random, so that the file always gives the same; train "
            "with --model.init_location center or learned"
        )
    metadata = {
        **base,
        "class_names": list(model.class_names),
        "end_class": model.end_class,
        "glimpses_per_label": model.num_glimpses_per_label,
        "boxes": {
            "output": "boxes",
            "axes": ["image", "glimpse", "scale", "left top right bottom"],
            "unit": "pixels of the input",
        },
    }
    images = _example_images(model.img_size)
    outputs = ("logits", "locations", "boxes")
    return _Graph("", _GreedyGlimpses(model), {"images": images}, outputs, metadata)


def _caption_graphs(model: LSTMCaptioner, base: dict[str, Any]) -> list[_Graph]:
    if has_hard_attention(model) and cast("ShowAttendTell", model).places == "sample":
        raise ValueError("sampled places cannot be exported: set model.places to argmax")
    images = _example_images(model.encoder.img_size)
    token = torch.full((len(images),), START)
    state: Any = model.start(model.encoder(images))
    values, after = _tensors(state), _tensors(model.step(state, token[:, None])[1])
    changing = [name for name in values if after[name] is not values[name]]
    metadata = {
        **base,
        "words": list(model.words),
        "tokens": {"pad": PAD, "start": START, "end": END, "unknown": UNKNOWN},
        "state": changing,
        "map": {
            "output": "attention",
            "axes": ["image", "y", "x"],
            "grid": list(model.encoder.grid_size),
        },
    }
    start, step = _CaptionStart(model), _CaptionStep(model, state, changing)
    outputs = ("logits", "attention", "gate", *(f"next_{name}" for name in changing))
    # Before the first word some tensors are one and the same, which the exporter would merge.
    inputs = {**{name: value.clone() for name, value in after.items()}, "token": token}
    return [
        _Graph("", start, {"images": images}, tuple(values), {**metadata, "graph": "start"}),
        _Graph(".step", step, inputs, outputs, {**metadata, "graph": "step"}),
    ]


def _example_images(size: tuple[int, int]) -> UInt8[Tensor, "2 3 y x"]:
    """Return images of noise that do not depend on the random state."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, *size), dtype=np.uint8)
    return torch.from_numpy(pixels)


def _write(graph: _Graph, file: Path) -> None:
    """Write a graph, and check the file before it gets its name."""
    batch = torch.export.Dim.DYNAMIC
    shapes: Any = tuple({0: batch} for _ in graph.inputs)
    if isinstance(graph.module, _CaptionStep):
        shapes = (shapes,)  # of one argument, which takes them all
    other = {name: _other_batch(value) for name, value in graph.inputs.items()}
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
    program: Any, graph: _Graph, part: Path, metadata: str, inputs: Mapping[str, Tensor]
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


def _other_batch(value: Tensor) -> Tensor:
    """Return another number of other examples, to check that the batch axis is free."""
    return torch.cat((value, value[:1]))[:_CHECKED_BATCH].flip(0)
