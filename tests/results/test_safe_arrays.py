"""Untrusted .npy and .npz files: headers are checked before memory is allocated."""

import io
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as shapes

from visattn.results import records
from visattn.results.records import read_array


class Trap:
    """An object whose unpickling creates a directory."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def npy_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz_bytes(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def header(shape: str, dtype: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    fields: Any = {"descr": dtype, "fortran_order": False, "shape": (3,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue().replace(b"(3,)", shape.encode())


DTYPES = st.sampled_from(["<f8", "<f4", "<f2", "<i4", ">i2", "|u1", "|b1", "<c8", "<U3"])


@given(
    DTYPES.flatmap(lambda dtype: shapes.arrays(dtype, shapes.array_shapes(min_side=0))), st.data()
)
def test_read_array_round_trip(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "a"
    array = np.asfortranarray(array) if data.draw(st.booleans()) else array
    file.write_bytes(
        npy_bytes(array) if data.draw(st.booleans()) else npz_bytes(x=npy_bytes(array))
    )
    loaded = read_array(file)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(loaded, array)


def test_header_is_read_while_other_threads_parse_python(tmp_path: Path) -> None:
    """CPython up to 3.11.8 counts the depth of its parser per process, not per thread."""
    file = tmp_path / "a.npy"
    np.save(file, np.zeros((8, 10)))
    with mock.patch("ast.parse", side_effect=SystemError("recursion depth mismatch")):
        assert read_array(file).shape == (8, 10)


@pytest.mark.parametrize(
    "text",
    [
        "{'shape': (2L, 3), 'descr': '<f4', 'fortran_order': False}",  # written by Python 2
        '{"descr":"<f4","fortran_order":False,"shape":(2,3,)}',  # by other languages
    ],
)
def test_header_of_other_writers(tmp_path: Path, text: str) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    (tmp_path / "a.npy").write_bytes(start + values.tobytes())
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), values)


def test_named_array_is_read_without_unpickling_others(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    trap = npz_bytes(
        maps=npy_bytes(np.arange(3)), other=npy_bytes(np.array([Trap(tmp_path / "mark")]))
    )
    file.write_bytes(trap)  # other arrays are not read
    assert read_array(file).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"or an array named gates, got \['maps', 'other'\]"):
        read_array(file, "gates")
    with pytest.raises(ValueError, match="holds object; arrays must hold numbers or strings"):
        read_array(file, "other")
    file.write_bytes(npy_bytes(np.array([Trap(tmp_path / "mark")])))
    with pytest.raises(ValueError, match="without pickle"):
        read_array(file)
    assert not (tmp_path / "mark").exists()
    np.load(file, allow_pickle=True)
    assert (tmp_path / "mark").exists()  # the trap works


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header("(1000000000000,)"), "takes 4,000,000,000,000 bytes, got "),
        (header("(1000000,1000000,1000000,10)"), "damaged: an array of"),
        (header("(-1,)") + bytes(4), "damaged: an array of|not a NumPy array"),
        (header("(2,)") + bytes(9), "takes 8 bytes, got 9"),
        (header("(1,)", "|O"), "holds object"),
        (header("(1,)", "<M8[s]") + bytes(8), "holds datetime64"),
        (header("(1,)", "|V8") + bytes(8), "must hold numbers or strings"),
        (header("__import__('os').getcwd()"), "not a NumPy array"),
        (b"\x93NUMPY\x07\x00" + bytes(20), r"not a NumPy array: .*x07"),
        (b"", "not a NumPy array"),
        (b"PK\x03\x04", "damaged: "),
        (b"PK\x05\x06" + bytes(18), r"must hold one array or an array named maps, got \[\]"),
        (npz_bytes(a=header("(1000000000000,)")), "bytes, got "),
    ],
)
def test_hostile_file_is_refused_before_memory_is_allocated(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "hostile.npz"
    file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        read_array(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_zip_bomb_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(npz_bytes(a=npy_bytes(np.zeros(10**6))))
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(records, "MAX_BYTES", 10**6)
    with pytest.raises(ValueError, match="holds 8,000,128 bytes, more than 1,000,000"):
        read_array(file)


@given(st.data())
def test_damaged_file_raises_only_value_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(
        data.draw(st.sampled_from([npy_bytes(np.eye(3)), npz_bytes(maps=npy_bytes(np.eye(3)))]))
    )
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "a.npz"
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    assert outcome(file)


def outcome(file: Path) -> str:
    """Return the shape or the ValueError of a file; any other error propagates."""
    try:
        return str(read_array(file).shape)
    except ValueError as error:
        return str(error)
