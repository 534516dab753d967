"""What `visattn fit` left in a folder: the config and the checkpoint that belong together.

Only the standard library is imported, so that a mistyped folder is answered at once.
"""

import re
from pathlib import Path

_CONFIG = re.compile(r"config(?:-(\d+))?\.yaml")
_LARGEST_LIST = 5  # runs that an error names


def find_run(folder: Path) -> Path:
    """Return the folder of a run: the one given, or the only numbered one inside it.

    Args:
        folder: As somebody types it: `runs/scenes/1`, or `runs/scenes`, which holds the runs of a
            config.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it is none, or holds several runs.

    Example:
        >>> folder = getfixture("tmp_path") / "runs" / "scenes"
        >>> (folder / "7" / "checkpoints").mkdir(parents=True)
        >>> find_run(folder).name
        '7'
    """
    if not folder.exists():
        raise FileNotFoundError(f"no run at {folder}: there is no such folder{_others(folder)}")
    if not folder.is_dir():
        raise ValueError(f"--run {folder} is a file; give the folder that visattn fit wrote")
    if _looks_like_a_run(folder):
        return folder
    if folder.name == "checkpoints" and _looks_like_a_run(folder.parent):
        return folder.parent
    inside = _runs_in(folder)
    if len(inside) > 1:
        names = ", ".join(str(path) for path in inside[-_LARGEST_LIST:])
        raise ValueError(f"{folder} holds {len(inside)} runs; choose one, the newest last: {names}")
    return inside[0] if inside else folder


def checkpoint_run(checkpoint: Path) -> Path:
    """Return the folder of the run that wrote a checkpoint.

    Example:
        >>> checkpoint_run(Path("runs/scenes/1/checkpoints/best.ckpt")).as_posix()
        'runs/scenes/1'
    """
    folder = checkpoint.parent
    return folder.parent if folder.name == "checkpoints" else folder


def run_config(run: Path) -> Path:
    """Return the config with which a run was last started.

    Raises:
        FileNotFoundError: If there is none.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("config.yaml", "config-2.yaml", "config-10.yaml"):
        ...     (folder / name).touch()
        >>> run_config(folder).name
        'config-10.yaml'
    """
    found = {
        int(match[1] or 1): path
        for path in run.glob("config*.yaml")
        if (match := _CONFIG.fullmatch(path.name))
    }
    if not found:
        raise FileNotFoundError(
            f"no config.yaml in {run}; visattn fit leaves one there. Name another run, or say "
            "--config FILE.yaml and --ckpt_path FILE"
        )
    return found[max(found)]


def run_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run, or its last one if it has no best.

    Raises:
        FileNotFoundError: If there is neither.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "checkpoints").mkdir()
        >>> (folder / "checkpoints" / "last.ckpt").touch()
        >>> run_checkpoint(folder).name
        'last.ckpt'
    """
    kept = run / "checkpoints"
    for name in ("best.ckpt", "last.ckpt"):
        if (kept / name).is_file():
            return kept / name
    others = sorted(path.name for path in kept.glob("*.ckpt"))
    hint = (
        f"it has {', '.join(others[:_LARGEST_LIST])}, which can be named"
        if others
        else "visattn fit saves them after validation"
    )
    raise FileNotFoundError(f"no checkpoint best.ckpt or last.ckpt in {kept}; {hint}")


def _looks_like_a_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file()


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, in the order of their numbers."""
    found = [path for path in folder.iterdir() if path.is_dir() and _looks_like_a_run(path)]
    return sorted(found, key=lambda path: (int(path.name) if path.name.isdecimal() else -1, path))


def _others(folder: Path) -> str:
    """Return what runs there are beside one that is not, as the end of a sentence."""
    parent = folder.parent
    inside = _runs_in(parent) if parent.is_dir() else []
    names = ", ".join(str(path) for path in inside[-_LARGEST_LIST:])
    return f"; there is {names}" if names else ""
