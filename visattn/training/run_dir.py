"""Run folders: `runs/CONFIG/NUMBER`."""

from pathlib import Path


def next_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of a new run: `root/name/1`, then 2, and so on.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "scenes" / "7").mkdir(parents=True)
        >>> next_run_dir("scenes", folder).name, latest_run_dir("scenes", folder).name
        ('8', '7')
    """
    return root / name / str(max(_numbers(root / name), default=0) + 1)


def latest_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of the newest run; without any, that of the first run."""
    return root / name / str(max(_numbers(root / name), default=1))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def require_empty_run_dir(run: Path) -> None:
    """Refuse a folder that already holds a run."""
    if run.exists() and any(run.iterdir()):
        raise FileExistsError(
            f"{run} already holds a run; choose another --run, remove the folder, or resume "
            f"the run with --ckpt_path {run}/checkpoints/last.ckpt"
        )
