"""Rows of tables: the types of their columns, and parquet files of them."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from visattn.io.atomic import atomic_write
from visattn.io.stores import is_url, write_url

COLUMNS = {
    "path": "string", "method": "string", "class": "string", "score": "float64",
    "caption": "string", "words": "list<string>", "log_probs": "list<float64>",
    "gates": "list<float64>", "finished": "bool", "question": "string", "answer": "string",
    "answers": "list<string>", "probabilities": "list<float64>", "classes": "list<string>",
    "scores": "list<float64>", "boxes": "list<float64>", "queries": "list<int64>",
    "map": "list<float32>", "map_shape": "list<int64>", "geometry": "string",
    "seen_share": "float64", "record": "string", "overlay": "binary", "figure": "binary",
    "page": "binary", "error": "string",
}  # fmt: skip
"""Type of each column of results, as pyarrow names it. No cell is null: the type of a column that
is null in all rows of a part would be lost, and the parts would not fit together."""
_EMPTY: Mapping[str, Any] = {
    "string": "", "float64": math.nan, "bool": False, "binary": b"", "list<string>": [],
}  # fmt: skip
_ROW_GROUP = 100  # rows that are read together: more would be slow where rows hold images


def empty_cell(column: str) -> Any:
    """Return what stands in a cell of a row that has no result.

    Example:
        >>> empty_cell("caption"), empty_cell("score"), empty_cell("map").dtype
        ('', nan, dtype('float32'))
    """
    kind = COLUMNS[column]
    inner = kind.removeprefix("list<").removesuffix(">")
    return _EMPTY[kind] if kind in _EMPTY else np.empty(0, inner)


def arrow_table(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a table of pyarrow; those of results have fixed types.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the columns differ in length.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install 'visattn[parquet]'") from error
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all columns of a table must have as many rows, got {lengths}")
    arrays: dict[str, Any] = {}
    for name, cells in columns.items():
        kind = COLUMNS.get(name)
        inner = kind and kind.removeprefix("list<").removesuffix(">")
        named = {"bool": pa.bool_(), "string": pa.string(), "binary": pa.binary()}
        type_ = inner and (named.get(inner) or pa.from_numpy_dtype(np.dtype(inner)))
        arrays[name] = pa.array(list(cells), pa.list_(type_) if kind != inner else type_)
    return pa.table(arrays)


def write_table(
    folder: str | os.PathLike[str],
    rows: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    part: int = 0,
) -> str:
    """Write results as one parquet file of a folder, which then is a table of all its parts.

    The name of a part depends on its number alone: who repeats a slice of the photos, after a
    crash or on another machine, replaces its rows and adds none. A part appears complete or not at
    all; in a store it is one upload. `datasets`, pandas, Ray and DuckDB read the folder.

    Args:
        folder: A folder, which is created; or a URL of a store such as `s3://bucket/maps`.
        rows: Columns, as `MapImages` and its like return them; or a list of rows, such as
            `[heatmap.to_row() for heatmap in maps]`.
        part: Number of the slice, from 0.

    Returns:
        The file or its URL.

    Raises:
        ImportError: If pyarrow, or the package of a store, is not installed.
        OSError: If it cannot be written.
        ValueError: If the columns differ in length, or the number is negative.

    Example:
        >>> import torch, pyarrow.parquet
        >>> from visattn import AttentionMap
        >>> rows = [AttentionMap(torch.eye(2), "layer4", "gradient").to_row()]
        >>> file = write_table(getfixture("tmp_path") / "maps", rows, part=3)
        >>> Path(file).name, pyarrow.parquet.read_table(file)["map"].to_pylist()
        ('part-000003.parquet', [[1.0, 0.0, 0.0, 1.0]])
    """
    if part < 0:
        raise ValueError(f"part must be the number of a slice, from 0, got {part}")
    if not isinstance(rows, Mapping):
        names = dict.fromkeys(name for row in rows for name in row)
        empty = {name: empty_cell(name) for name in names if name in COLUMNS}
        rows = {name: [row.get(name, empty.get(name)) for row in rows] for name in names}
    content = encode_table(arrow_table(rows))
    name = f"part-{part:06}.parquet"
    if is_url(os.fspath(folder)):
        url = f"{os.fspath(folder).rstrip('/')}/{name}"
        write_url(url, content)
        return url
    Path(folder).mkdir(parents=True, exist_ok=True)
    atomic_write(Path(folder, name), content)
    return str(Path(folder, name))


def encode_table(table: Any) -> bytes:
    """Return a table of pyarrow as a parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", row_group_size=_ROW_GROUP)
    return sink.getvalue().to_pybytes()
