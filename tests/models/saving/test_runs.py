"""Run directories: finding a run, its config and its checkpoint."""

from pathlib import Path

import pytest

from visattn.models.saving.runs import find_run, run_checkpoint, run_config


def make_run(folder: Path, *names: str) -> Path:
    for name in names or ("config.yaml", "checkpoints/best.ckpt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_run_is_found_by_its_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "demo")
    assert find_run(run) == run
    assert find_run(run / "checkpoints") == run


def test_single_run_of_a_config_is_found_without_its_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "scenes" / "3")
    (tmp_path / "scenes" / "notes").mkdir()
    assert find_run(tmp_path / "scenes") == run


def test_several_runs_require_a_choice(tmp_path: Path) -> None:
    for number in range(1, 12):
        make_run(tmp_path / "scenes" / str(number))
    with pytest.raises(ValueError, match=r"holds 11 runs; choose one, .*scenes/7, .*scenes/11$"):
        find_run(tmp_path / "scenes")


def test_missing_folder_error_lists_its_siblings(tmp_path: Path) -> None:
    make_run(tmp_path / "scenes" / "2")
    with pytest.raises(FileNotFoundError, match=r"no run at .*there is .*scenes/2$"):
        find_run(tmp_path / "scenes" / "3")
    with pytest.raises(FileNotFoundError, match=r"there is no such folder$"):
        find_run(tmp_path / "elsewhere" / "3")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; give the folder"):
        find_run(tmp_path / "file")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["config.yaml"], "config.yaml"),
        (["config.yaml", "config-2.yaml", "config-10.yaml"], "config-10.yaml"),
        (["config.yaml", "config-old.yaml", "config-9.yaml.part"], "config.yaml"),
    ],
)
def test_latest_config_is_used(names: list[str], expected: str, tmp_path: Path) -> None:
    assert run_config(make_run(tmp_path / "run", *names)).name == expected


def test_missing_config_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config.yaml in .* --config FILE.yaml and"):
        run_config(make_run(tmp_path / "run", "checkpoints/best.ckpt"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["best", "last"], "best"), (["last", "epoch=3"], "last")],
)
def test_best_checkpoint_is_preferred_to_the_last(
    names: list[str], expected: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", *(f"checkpoints/{name}.ckpt" for name in names))
    assert run_checkpoint(run).stem == expected


def test_missing_checkpoint_error_lists_the_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="visattn fit saves them after validation"):
        run_checkpoint(make_run(tmp_path / "empty", "config.yaml"))
    with pytest.raises(
        FileNotFoundError, match=r"it has epoch=3.ckpt, which can be passed as --ckpt_path"
    ):
        run_checkpoint(make_run(tmp_path / "other", "checkpoints/epoch=3.ckpt"))
