"""Files that an earlier version wrote: each is read, and gives what it gave."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from command_sandbox import CONFIG
from feature_cache_data import Photos, prepare, small_encoder
from kept_values import Keep
from model_examples import EXAMPLES
from named_weights import fill
from shard_data import noise_plan

import visattn as va
from visattn.cli import main
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.writer import write_shards
from visattn.results import Answer, Caption, Detections, ScanPath, Segmentation

# Written once, by the version of November 2026: `write` made them. A later version adds its own.
FILES = Path(__file__).parent / "files"
SAVED = ("SmallEncoder", "ShowAttendTell", "VisionTransformer", "DETR", "DRAM")


def write(folder: Path) -> None:
    """Write what the tests read into a folder whose name may be seen: a checkpoint holds it."""
    for name in SAVED:
        va.save(fill(EXAMPLES[name]), folder / f"{name}.safetensors")
    write_shards(folder / "shards", noise_plan((5, 3)), per_shard=4)
    prepare(folder / "features", fill(small_encoder()), Photos(2))
    (folder / "config.yaml").write_text(CONFIG)
    os.chdir(folder)
    main(["fit", "--config", "config.yaml", "--run", "run"])
    for file in (*Path("run").glob("events*"), Path("run", ".lock")):
        file.unlink()


@pytest.mark.parametrize("name", SAVED)
def test_models(name: str) -> None:
    model = va.load(FILES / f"{name}.safetensors")
    expected = fill(EXAMPLES[name]).state_dict()
    assert type(model) is type(EXAMPLES[name])
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())


def test_shards(keep: Keep) -> None:
    splits = {split: ShardSamples(FILES / "shards", split) for split in ("train", "validation")}
    keep(
        "files/shards",
        {
            split: [samples.record(index) for index in range(len(samples))]
            for split, samples in splits.items()
        },
    )


def test_features(keep: Keep, tmp_path: Path) -> None:
    shutil.copytree(FILES / "features", tmp_path / "features")
    records = tmp_path / "features" / "features.bin"
    before = records.stat().st_mtime_ns
    cache = prepare(tmp_path / "features", fill(small_encoder()), Photos(2))
    assert records.stat().st_mtime_ns == before  # nothing is computed again
    grids = {name: cache.read(number) for number, name in enumerate(cache.ids)}
    keep("files/features", {name: [grid[:, ::3] for grid in each] for name, each in grids.items()})


def test_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(FILES / "run", run)
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.chdir(tmp_path)
    assert type(va.load_model(f"run:{run}").model).__name__ == "ShowAttendTell"
    assert main(["test", "--run", str(run)]) == 0
    assert (run / "test.json").exists()
    longer = ["--trainer.max_steps=3", "--trainer.max_epochs=3", "--ckpt_path", "last"]
    config = str(FILES / "config.yaml")
    assert main(["fit", "--config", config, "--run", str(run), *longer]) == 0
    assert torch.load(run / "checkpoints" / "last.ckpt")["global_step"] == 3


RECORDS = {
    "caption": (Caption, lambda record: record),
    "ask": (Answer, lambda record: record["questions"][0]),
    "detect": (Detections, lambda record: record),
    "glimpse": (ScanPath, lambda record: record),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str) -> None:
    """Records of commands, as they were before results wrote how their maps were made."""
    kind, part = RECORDS[name]
    record = part(json.loads((FILES / "records" / f"{name}.json").read_text()))
    again = json.loads(json.dumps(kind.from_dict(record).to_dict()))
    kept = {key: each for key, each in record.items() if key not in ("provenance", "card")}
    assert _rounded(_common(again, kept)) == _rounded(kept)


def test_record_without_label_map() -> None:
    record = json.loads((FILES / "records" / "segment.json").read_text())
    with pytest.raises(ValueError, match="visattn segment writes that to masks/NAME.png"):
        Segmentation.from_dict(record)


def _common(value: Any, kept: Any) -> Any:
    """Return a record without the keys that it did not have before."""
    if isinstance(value, dict):
        return {key: _common(value[key], kept[key]) for key in value if key in kept}
    if isinstance(value, list) and len(value) == len(kept):
        return [_common(*pair) for pair in zip(value, kept, strict=True)]
    return value


def _rounded(value: Any) -> Any:
    """Return a record with numbers of five digits: float32 has seven."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
