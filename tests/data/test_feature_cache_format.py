"""File format of cached features: damage is detected, and only one process writes."""

import json
import os
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from feature_cache_data import Photos, prepare, small_encoder
from hypothesis import given, strategies as st

from visattn.data.feature_cache import (
    HEADER,
    LOCK,
    RECORDS,
    FeatureCache,
    lock_folder,
    pack_records,
    unpack_record,
)
from visattn.models.backbones.timm_encoder import TimmEncoder


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    return small_encoder()


@given(values=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=31), spot=st.integers(0))
def test_damaged_record_is_detected(values: list[int], spot: int) -> None:
    bits = np.array(values, dtype=np.uint16)
    record = pack_records(bits.view(np.float16).reshape(1, 1, -1))[0, 0]
    unpacked = unpack_record(record)
    assert unpacked is not None
    assert np.array_equal(unpacked.view(np.uint16), bits)
    damaged = bytearray(record.tobytes())
    damaged[spot % len(damaged)] ^= 1 << spot % 8
    assert unpack_record(np.frombuffer(damaged, dtype="<u2")) is None


def damage(folder: Path, how: str) -> None:
    records, header = folder / RECORDS, folder / HEADER
    if how == "cut":
        records.write_bytes(records.read_bytes()[:-1])
    elif how == "longer":
        records.write_bytes(records.read_bytes() + b"x")
    elif how == "no records":
        records.unlink()
    elif how == "no header":
        header.unlink()
    elif how == "half a header":
        header.write_text(header.read_text()[:100])
    elif how == "a list":
        header.write_text("[1, 2]")
    elif how == "a word":
        header.write_text('"features"')
    elif how == "a key that cannot be printed":
        header.write_text(json.dumps({**json.loads(header.read_text()), "co\0": 1}))
    elif how == "no text":
        header.write_bytes(b"\xff\xfe\x00")
    else:
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": "other-2"}))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("cut", r"features\.bin is damaged: it has [\d,]+ bytes and must have [\d,]+; remove"),
        ("longer", r"features\.bin is damaged"),
        ("no records", r"features\.bin is damaged: it has 0 bytes"),
        ("no header", r"holds features\.bin without features\.json"),
        ("half a header", r"features\.json is damaged, or not in the format visattn-features-1"),
        ("a list", r"features\.json is damaged"),
        ("a word", r"features\.json is damaged"),
        ("a key that cannot be printed", r"features\.json is damaged[ -~]*\\x00[ -~]*another one$"),
        ("no text", r"features\.json is damaged"),
        ("format", r"features\.json is damaged, or not in the format visattn-features-1"),
    ],
)
def test_damage_is_refused(tmp_path: Path, encoder: TimmEncoder, how: str, reason: str) -> None:
    prepare(tmp_path, encoder, Photos())
    damage(tmp_path, how)
    with pytest.raises(ValueError, match=reason):
        FeatureCache(tmp_path)
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, encoder, Photos())


def test_changed_byte_is_detected_on_read(tmp_path: Path, encoder: TimmEncoder) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    content = bytearray((tmp_path / RECORDS).read_bytes())
    content[cache.header.photo_bytes * 5 + 1234] ^= 8
    (tmp_path / RECORDS).write_bytes(content)
    cache.read(4)
    with pytest.raises(
        ValueError, match=r"features\.bin is damaged at the record of 5\.jpg; remove"
    ):
        cache.read(5)
    cache.read(5, 1)


def test_lock_file_of_a_dead_process_does_not_block(tmp_path: Path, encoder: TimmEncoder) -> None:
    (tmp_path / LOCK).write_text("4194304")  # higher than any process has
    messages: list[str] = []
    prepare(tmp_path, encoder, Photos(), log=messages.append)
    assert not any("waiting" in line for line in messages)


def test_waiting_process_names_the_lock_owner(tmp_path: Path) -> None:
    messages: list[str] = []
    turns: list[str] = []
    (tmp_path / LOCK).write_text("4194304")  # the previous owner

    def wait() -> None:
        with lock_folder(tmp_path, messages.append):
            turns.append("second")

    waiter = Thread(target=wait)
    with lock_folder(tmp_path, messages.append):
        waiter.start()
        for _ in range(2000):  # as many hundredths of a second, on the slowest machine
            if messages:
                break
            waiter.join(0.01)
        turns.append("first")
    waiter.join()
    assert turns == ["first", "second"]
    assert messages == [
        f"features: waiting for process {os.getpid()}, which is writing to {tmp_path}"
    ]
