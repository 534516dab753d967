"""Verification of shards: damage is detected and named by tar and key."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from classification_data import write_photo_folders
from hypothesis import given, settings, strategies as st
from shard_data import noise_plan, write_class_shards

from visattn.data.shards.format import file_sha256
from visattn.data.shards.writer import check_shards, find_shard_faults, write_shards


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    write_shards(folder, noise_plan((5, 2)), per_shard=3)
    return folder


def test_intact_shards_have_no_faults_and_every_sample_is_checked(noise: Path) -> None:
    for decode in (True, False):
        reported: list[int] = []
        assert not list(find_shard_faults(noise, decode=decode, progress=reported.append))
        assert sum(reported) == 7


@settings(max_examples=25)
@given(st.data())
def test_changed_bit_anywhere_is_detected(noise: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(p for p in noise.iterdir() if p.suffix != ".json")))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=path.name):
            check_shards(noise, decode=False)
    finally:
        path.write_bytes(whole)


@settings(max_examples=15)
@given(st.data())
def test_truncation_anywhere_is_detected(noise: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(noise.iterdir())))
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(ValueError, match=path.name):
            check_shards(noise, decode=False)
    finally:
        path.write_bytes(whole)


def test_faults_name_tars_and_keys_and_are_counted(tmp_path: Path) -> None:
    write_photo_folders(tmp_path / "photos", train=8)
    folder = write_class_shards(tmp_path / "shards", tmp_path / "photos", tar=50)
    rows = np.load(folder / "train.index.npy")
    tar = folder / "train-000000.tar"
    content = bytearray(tar.read_bytes())
    for row in rows:
        content[int(row["image"]) + 1] ^= 255
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=r"24 faults|25 faults") as caught:
        check_shards(folder)
    said = str(caught.value)
    assert "train-000000.tar: its SHA-256 differs from the recorded one" in said
    assert "train-000000.tar, key 000000000: not an image of a known format" in said
    assert said.endswith("and 5 more")
    assert len(list(find_shard_faults(folder, decode=False))) == 1  # the hash alone


def test_members_that_contradict_the_index_are_detected(noise: Path, tmp_path: Path) -> None:
    """A tar with other samples than the index, although all hashes match."""
    folder = tmp_path / "two"
    write_shards(folder, noise_plan((5, 2)), per_shard=3)
    tar = folder / "train-000001.tar"
    extra = tar.read_bytes()[:-1024] + (folder / "validation-000000.tar").read_bytes()
    tar.write_bytes(extra)
    info = json.loads((folder / "info.json").read_text())
    facts = info["splits"]["train"]["shards"][1]
    facts["bytes"], facts["sha256"] = len(extra), file_sha256(tar)
    (folder / "info.json").write_text(json.dumps(info))
    (fault, *_) = find_shard_faults(folder)
    assert fault.location.endswith("train-000001.tar")
    assert fault.reason == "must hold 2 samples"


def test_oversized_member_is_named_with_its_file(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", noise_plan((5, 2)), per_shard=3)
    path = tmp_path / "a" / "train-000001.tar"
    whole = path.read_bytes()
    for size in (2**60, 2**64, 2**87):
        header = bytearray(whole[:512])
        header[124:136] = b"\x80" + size.to_bytes(11, "big")  # as GNU writes what is longer
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
        path.write_bytes(bytes(header) + whole[512:])
        faults = list(map(str, find_shard_faults(tmp_path / "a", decode=False)))
        assert any(fault.startswith(f"{path}: not a tar file: ") for fault in faults)
        assert all("train-000001.tar" in fault for fault in faults)


def test_pipes_and_oversized_indices_are_refused_at_once(
    tmp_path: Path,
) -> None:
    write_shards(tmp_path / "a", noise_plan((5, 2)), per_shard=3)
    index, info = tmp_path / "a" / "train.index.npy", tmp_path / "a" / "info.json"
    said = info.read_text()
    for text in (said.replace('"samples":5', '"samples":1e999'), said.replace(":5", ":NaN")):
        assert text != said
        info.write_text(text)
        with pytest.raises(ValueError, match=r"info\.json is damaged, or not in the format"):
            check_shards(tmp_path / "a")
    info.write_text(said)
    index.unlink()
    os.mkfifo(index)
    with pytest.raises(ValueError, match=r"train\.index\.npy is not a regular|is missing or dam"):
        check_shards(tmp_path / "a")
