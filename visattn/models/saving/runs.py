"""Run directories of `visattn fit`: the config and the checkpoint of a training run.

Only the standard library is imported, so that a mistyped path is reported without delay.
"""

import re
from pathlib import Path

_CONFIG = re.compile(r"config(?:-(\d+))?\.yaml")
_MAX_LISTED = 5  # runs or checkpoints in an error message


def find_run(folder: Path) -> Path:
    """Return the directory of a run: the folder itself, or the only run inside it.

    Args:
        folder: Directory of a run, such as `runs/scenes/1`, or the parent directory of the runs of
            a config, such as `runs/scenes`.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the path is a file, or the folder contains several runs.

    Example:
        >>> folder = getfixture("tmp_path") / "runs" / "scenes"
        >>> (folder / "7" / "checkpoints").mkdir(parents=True)
        >>> find_run(folder).name
        '7'
    """
    if not folder.exists():
        siblings = _list_runs(folder.parent) if folder.parent.is_dir() else []
        hint = f"; there is {_format_newest(siblings)}" if siblings else ""
        raise FileNotFoundError(f"no run at {folder}: there is no such folder{hint}")
    if not folder.is_dir():
        raise ValueError(f"--run {folder} is a file; give the folder that visattn fit wrote")
    if _is_run(folder):
        return folder
    if folder.name == "checkpoints" and _is_run(folder.parent):
        return folder.parent
    runs = _list_runs(folder)
    if len(runs) > 1:
        raise ValueError(
            f"{folder} holds {len(runs)} runs; choose one, the newest last: {_format_newest(runs)}"
        )
    return runs[0] if runs else folder


def checkpoint_run(checkpoint: Path) -> Path:
    """Return the directory of the run that wrote a checkpoint.

    Example:
        >>> checkpoint_run(Path("runs/scenes/1/checkpoints/best.ckpt")).as_posix()
        'runs/scenes/1'
    """
    folder = checkpoint.parent
    return folder.parent if folder.name == "checkpoints" else folder


def run_config(run: Path) -> Path:
    """Return the path of the latest config of a run, which has the highest number.

    Raises:
        FileNotFoundError: If the run has no config.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("config.yaml", "config-2.yaml", "config-10.yaml"):
        ...     (folder / name).touch()
        >>> run_config(folder).name
        'config-10.yaml'
    """
    configs = {
        int(match[1] or 1): path
        for path in run.glob("config*.yaml")
        if (match := _CONFIG.fullmatch(path.name))
    }
    if not configs:
        raise FileNotFoundError(
            f"no config.yaml in {run}; visattn fit writes one there. Choose another run, or pass "
            "--config FILE.yaml and --ckpt_path FILE"
        )
    return configs[max(configs)]


def run_checkpoint(run: Path) -> Path:
    """Return the path of the best checkpoint of a run, or of the last one if there is no best.

    Raises:
        FileNotFoundError: If the run has neither best.ckpt nor last.ckpt.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "checkpoints").mkdir()
        >>> (folder / "checkpoints" / "last.ckpt").touch()
        >>> run_checkpoint(folder).name
        'last.ckpt'
    """
    checkpoints = run / "checkpoints"
    for name in ("best.ckpt", "last.ckpt"):
        if (checkpoints / name).is_file():
            return checkpoints / name
    others = sorted(path.name for path in checkpoints.glob("*.ckpt"))
    hint = (
        f"it has {', '.join(others[:_MAX_LISTED])}, which can be passed as --ckpt_path"
        if others
        else "visattn fit saves them after validation"
    )
    raise FileNotFoundError(f"no checkpoint best.ckpt or last.ckpt in {checkpoints}; {hint}")


def _is_run(folder: Path) -> bool:
    """Return whether a folder has a config or a subdirectory of checkpoints."""
    return (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file()


def _list_runs(folder: Path) -> list[Path]:
    """Return the directories of the runs in a folder, sorted by number."""
    runs = [path for path in folder.iterdir() if path.is_dir() and _is_run(path)]
    return sorted(runs, key=lambda path: (int(path.name) if path.name.isdecimal() else -1, path))


def _format_newest(runs: list[Path]) -> str:
    return ", ".join(map(str, runs[-_MAX_LISTED:]))
