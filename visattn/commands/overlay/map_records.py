"""Output files of maps: arrays and metadata, by which an interrupted run is resumed."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.folders import check_no_overwrite, create_folder
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.results.attention_map import AttentionMap

IMAGES = {"overlay": ".png", "rgba": ".rgba.png", "16bit": ".16bit.png"}
_PAGES = (".methods.png", ".heads.png", ".html")


class MapFolder:
    """Output folder with an array, a metadata record and images for each map.

    A map is not computed again if its record shows that it was made from the same image in the
    same way.

    Args:
        folder: Output folder; created if it does not exist.
        names: File names of the images without suffix.
        keys: Keys of the maps of each image.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If a file would overwrite an input image.
    """

    def __init__(self, folder: Path, names: Mapping[Path, str], keys: Sequence[str]) -> None:
        suffixes = [f".{key}{end}" for key in keys for end in (*IMAGES.values(), ".npy", ".json")]
        files = (f"{name}{suffix}" for name in names.values() for suffix in (*suffixes, *_PAGES))
        check_no_overwrite(folder, files, names)
        create_folder(folder)
        self.folder = folder

    def read_record(
        self, name: str, key: str, expected: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the record of a map if it exists and has the expected entries, else None.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            expected: Entries that identify model, method and image.
        """
        from visattn.io.safe_text import read_json

        path = self.folder / f"{name}.{key}.json"
        try:
            record = read_json(path)
            same = all(record[part] == _plain(value) for part, value in expected.items())
            same = same and record["key"] == key and _is_printable(record)
        except (OSError, ValueError, KeyError, TypeError):  # missing, truncated or another format
            return None
        return record if same and path.with_suffix(".npy").is_file() else None

    def load(self, name: str, key: str, record: Mapping[str, Any]) -> "AttentionMap":
        """Return a map from its files.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            record: Record of the map.
        """
        import torch

        from visattn.geometry.affine import Geometry
        from visattn.results.attention_map import AttentionMap
        from visattn.results.records import read_array

        path = self.folder / f"{name}.{key}.npy"
        try:
            return AttentionMap(
                torch.from_numpy(read_array(path)),
                record["site"],
                record["kind"],
                Geometry.from_dict(record["geometry"]),
                record["metadata"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} and its record are no map ({error}); write them again with --overwrite"
            ) from error

    def save(
        self, name: str, key: str, attention_map: "AttentionMap", entries: Mapping[str, Any]
    ) -> None:
        """Write the array and the record of a map.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            attention_map: The map.
            entries: More entries of the record, as plain values.

        Raises:
            OSError: If a file cannot be written.
        """
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, attention_map.values.numpy())
        self.write(f"{name}.{key}.npy", buffer.getvalue())
        geometry = attention_map.geometry
        record = {
            **entries,
            "kind": attention_map.kind,
            "site": attention_map.site,
            "map_shape": list(attention_map.values.shape),
            "geometry": None if geometry is None else geometry.to_dict(),
            "metadata": _plain(attention_map.metadata),
            "values": _summary(attention_map),
        }
        content = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
        self.write(f"{name}.{key}.json", content.encode() + b"\n")

    def has(self, names: Sequence[str]) -> bool:
        """Whether all these files exist."""
        return all((self.folder / name).is_file() for name in names)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically.

        Raises:
            OSError: If it cannot be written.
        """
        atomic_write(self.folder / name, content)


def _is_printable(record: Mapping[str, Any]) -> bool:
    """Whether a record has what the row of a map shows, in the right types."""
    metadata, scale = record["metadata"], record["scale"]
    values = [metadata["probability"], metadata.get("cosine")] if isinstance(metadata, dict) else ""
    values = [value for value in values if value is not None]
    if scale is not None:  # not known before all maps are
        values += [scale["vmin"], scale["vmax"], scale["signed"]]
    return isinstance(metadata, dict) and all(isinstance(value, int | float) for value in values)


def _plain(value: Any) -> Any:
    """Return a value as it is read back from JSON; unknown types become strings."""
    return json.loads(json.dumps(_finite(value), default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _summary(attention_map: "AttentionMap") -> dict[str, Any]:
    """Return minimum, maximum and mean of a map, and the image coordinates of its maximum."""
    import torch

    values, geometry = attention_map.values, attention_map.geometry
    if not bool(torch.isfinite(values).all()) or geometry is None:
        return {}
    row, column = divmod(int(values.argmax()), values.shape[-1])
    height, width = geometry.input_size
    cell = torch.tensor([[column + 0.5, row + 0.5]], dtype=torch.float64)
    cell *= torch.tensor([width / values.shape[-1], height / values.shape[-2]])
    [[x, y]] = geometry.to_image(cell).tolist()
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "argmax": [round(x, 2), round(y, 2)],
    }
