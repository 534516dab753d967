"""Files of a map of `visattn overlay`: its record, its array, the text of its card."""

import io
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.records import Record

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from visattn.geometry.affine import Geometry
    from visattn.images.reader import LoadedImage
    from visattn.results.attention_map import AttentionMap
    from visattn.results.info import MapInfo
    from visattn.results.scale import MapScale

_version = cache(version)  # which reads and parses the metadata of the package


def map_record(
    key: str, image: "LoadedImage", attention_map: "AttentionMap", scale: "MapScale | None"
) -> dict[str, Any]:
    """Return what the record of a map says.

    Args:
        key: Key of the map.
        image: The image.
        attention_map: The map.
        scale: Its scale; None before all maps of the images are known.
    """
    described = attention_map.to_dict()
    del described["values"]  # they are in the array
    return {
        "key": key,
        "image": image.name,
        **described,
        "map_shape": list(attention_map.values.shape),
        "scale": None if scale is None else scale.to_dict(),
        "values": _summary(attention_map),
        "visattn": _version("visattn"),
        "torch": _version("torch"),
    }


def read_info(record: Record) -> "MapInfo":
    """Return method, target and further facts of a map from its record."""
    from visattn.results.info import MapInfo

    return MapInfo.from_dict(record["info"])


def encode_npy(attention_map: "AttentionMap") -> bytes:
    """Return the values of a map as a file of NumPy."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, attention_map.values.numpy())
    return buffer.getvalue()


def read_map(file: Path, record: Record) -> "AttentionMap":
    """Return a map from its array and its record.

    Raises:
        ValueError: If they are none.
    """
    from visattn.results.attention_map import AttentionMap
    from visattn.results.map_files import read_array

    try:
        return AttentionMap.from_dict({**record, "values": read_array(file)})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} and its record are no map ({error}); write them again with --overwrite"
        ) from error


def index_text(maps: "Sequence[AttentionMap]") -> str:
    """Return the text of an index card: explained class, methods, failures.

    Size and colors of the input are named if they were assumed or passed, not if they are known to
    be those of the model.

    Args:
        maps: One map per method.
    """
    from visattn.pipelines.inputs import PASSED_COLORS
    from visattn.viz.maps import method_title, target_line

    titles = [method_title(each) for each in maps if not each.info.empty]
    failures = [
        f"{method_title(each)} not drawn: {each.info.empty}" for each in maps if each.info.empty
    ]
    info = maps[0].info
    source = str(info.more.get("preprocessing", {}).get("source", ""))
    own = not source.startswith(("assumed", PASSED_COLORS))
    parts = [target_line(maps[0]), ", ".join(titles), *failures, "" if own else info.input_text]
    return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _peak(values: "Float[Tensor, 'y x']", geometry: "Geometry") -> tuple[float, float]:
    """Return the center of the highest cell on the photo; cells in the padding do not count."""
    import torch

    rows, columns = values.shape
    height, width = geometry.input_size
    step = torch.tensor([width / columns, height / rows], dtype=torch.float64)
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
    corners = [geometry.to_image((grid + offset) * step) for offset in (0.0, 1.0)]
    low, high = torch.minimum(*corners), torch.maximum(*corners)
    start, end = torch.tensor(geometry.region, dtype=torch.float64).view(2, 2)
    outside = ((high <= start) | (low >= end)).any(1)
    if bool(outside.all()):
        outside[:] = False
    best = int(values.flatten().masked_fill(outside, -torch.inf).argmax())
    x, y = ((low + high) / 2)[best].clamp(start, end).tolist()
    return x, y


def _summary(attention_map: "AttentionMap") -> dict[str, Any]:
    """Return minimum, maximum and mean of a map, and where on the photo its maximum lies."""
    import torch

    values = attention_map.values
    geometry = attention_map.geometry
    if not bool(torch.isfinite(values).all()) or geometry is None:
        return {}
    x, y = _peak(values.flatten(0, -3).amax(0) if values.ndim > 2 else values, geometry)
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "argmax": [round(x, 2), round(y, 2)],
    }
