"""Selection of the checkpoint to resume from; other checkpoints are kept."""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_files import write_checkpoint

from visattn.training.run_dir import find_resume_point, set_aside


def test_the_newest_is_the_one_after_most_steps_whatever_the_dates(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert find_resume_point(run).file is None
    best = write_checkpoint(run / "checkpoints" / "best.ckpt", 10, dated=9)
    assert find_resume_point(run).file == best
    last = write_checkpoint(run / "checkpoints" / "last.ckpt", 60, dated=5)
    assert find_resume_point(run)[:2] == (last, (60, 60))
    requeued = write_checkpoint(run / "hpc_ckpt_1.ckpt", 70, dated=1)
    (run / "checkpoints" / ".last.ckpt.0a.part").write_bytes(b"half")
    assert find_resume_point(run) == (requeued, (70, 70), ())
    write_checkpoint(last, 70, dated=1)
    assert find_resume_point(run).file == last  # of equals
    (tmp_path / "link").symlink_to(run)
    assert find_resume_point(tmp_path / "link").file == tmp_path / "link/checkpoints/last.ckpt"


def test_damaged_checkpoints_are_skipped_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = write_checkpoint(tmp_path / "checkpoints" / "best.ckpt", 10)
    last = best.with_name("last.ckpt")
    whole = write_checkpoint(last, 60).read_bytes()
    at = whole.index(b"state_dict")  # in a record, not in the padding between records
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for content in (b"", whole[:-200], flipped):
        last.write_bytes(content)
        assert find_resume_point(tmp_path) == (best, (10, 10), (last,))
        assert f"{last} cannot be used: " in caplog.messages[-1]
    saved = torch.load(write_checkpoint(last, 60), weights_only=True)
    del saved["loops"]
    torch.save(saved, last)
    assert find_resume_point(tmp_path) == (best, (10, 10), (last,))
    assert "it has no loops" in caplog.messages[-1]
    last.unlink()
    last.mkdir()
    assert find_resume_point(tmp_path).unusable == (last,)
    for number, text in enumerate(("", "-2", "-3")):
        set_aside([last], tmp_path)
        kept = last.with_name(f"last.ckpt.damaged{text}")
        assert caplog.messages[-1] == f"{last} is kept as {kept}"
        assert kept.is_dir() if number == 0 else kept.read_text() == str(number)
        last.write_text(str(number + 1))
    scheduled = tmp_path / "hpc_ckpt_1.ckpt"
    scheduled.write_text("rubbish")
    set_aside([scheduled], tmp_path)
    assert not list(tmp_path.glob("hpc_ckpt*"))  # Lightning would resume from whatever it is
    shutil.copy(last, best)
    assert find_resume_point(tmp_path)[::2] == (None, (best, last))
    assert f"{tmp_path} holds no usable checkpoint" in caplog.messages[-1]
