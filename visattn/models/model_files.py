"""Finds models: files, bundled models, run folders of `visattn fit`, the hub.

Imports only the standard library, so that a mistyped name is reported at once.
"""

import re
from pathlib import Path

from visattn.io.messages import did_you_mean

BUNDLED = Path(__file__).parent / "bundled"
FORMS = (
    "a file of visattn export, a run folder of visattn fit or one of its checkpoints, one of "
    "`visattn models`, hf://USER/NAME[@REVISION], timm:NAME, torchvision:NAME, hf:DIRECTORY, "
    "FILE.py:NAME or package.module:NAME"
)
_HUB = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^\s@]+))?")


def find_model(name: str) -> Path:
    """Return the file of a visattn model; a model on the hub is downloaded into the cache.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If a folder holds several runs, or the name of a repository is malformed.

    Example:
        >>> find_model("scenes-captioner").name
        'scenes-captioner.safetensors'
        >>> find_model("scene-captioner")
        Traceback (most recent call last):
        FileNotFoundError: no model is named 'scene-captioner'; did you mean scenes-captioner...
    """
    if name.startswith("hf://"):
        from huggingface_hub import HfApi

        repository, revision = parse_hub_name(name)
        return Path(HfApi().hf_hub_download(repository, "model.safetensors", revision=revision))
    path = Path(name).expanduser()
    if path.is_dir():
        return run_checkpoint(find_run(path))
    if path.exists():
        return path
    if name in bundled_models():
        return BUNDLED / f"{name}.safetensors"
    import timm
    import torchvision

    libraries = {"timm": timm.list_models(), "torchvision": torchvision.models.list_models()}
    meant = [f"{library}:{name}" for library, names in libraries.items() if name in names]
    hint = did_you_mean(name, bundled_models(), otherwise=f"a model is named by {FORMS}")
    hint = f"did you mean {' or '.join(meant)}?" if meant else hint
    raise FileNotFoundError(f"no model is named {name!r}; {hint}")


def parse_hub_name(name: str) -> tuple[str, str | None]:
    """Return repository and revision of `hf://USER/NAME[@REVISION]`.

    Example:
        >>> parse_hub_name("hf://user/name@v1"), parse_hub_name("hf://user/name")
        (('user/name', 'v1'), ('user/name', None))
    """
    if not (match := _HUB.fullmatch(name)):
        raise ValueError(f"a model on the hub is named hf://USER/NAME[@REVISION], got {name!r}")
    return match[1], match[2]


def bundled_models() -> dict[str, str]:
    """Return the names of the models that come with visattn, with the summaries of their cards.

    Example:
        >>> "imagenet-classifier" in bundled_models()
        True
    """
    summaries: dict[str, str] = {}
    for file in sorted(BUNDLED.glob("*.safetensors")):
        card = file.with_suffix(".md").read_text(encoding="utf-8")
        lines = card.split("\n# ", 1)[-1].splitlines()[1:]  # below the heading
        summaries[file.stem] = next(filter(None, lines), "")
    return summaries


def find_run(folder: Path) -> Path:
    """Return the folder of a run: the folder itself, its parent, or the only run in it.

    Example:
        >>> folder = getfixture("tmp_path") / "runs" / "scenes"
        >>> (folder / "7" / "checkpoints").mkdir(parents=True)
        >>> find_run(folder).name, find_run(folder / "7" / "checkpoints").name
        ('7', '7')
    """
    if _is_run(folder):
        return folder
    if folder.name == "checkpoints" and _is_run(folder.parent):
        return folder.parent
    runs = sorted(filter(_is_run, folder.glob("*/")), key=lambda run: (len(run.name), run.name))
    if len(runs) == 1:
        return runs[0]
    if runs:
        newest = ", ".join(map(str, runs[-5:]))
        raise ValueError(f"{folder} holds {len(runs)} runs; choose one, the newest last: {newest}")
    hint = f"; did you mean hf:{folder}?" if (folder / "config.json").is_file() else ""
    raise FileNotFoundError(f"there is no run of visattn fit at {folder}{hint}")


def _is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file()


def checkpoint_run(checkpoint: Path) -> Path:
    """Return the folder of the run that wrote a checkpoint.

    Example:
        >>> checkpoint_run(Path("runs/scenes/1/checkpoints/best.ckpt")).as_posix()
        'runs/scenes/1'
    """
    folder = checkpoint.parent
    return folder.parent if folder.name == "checkpoints" else folder


def run_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run, or the last one if there is no best.

    Raises:
        FileNotFoundError: If it has neither.
    """
    folder = run / "checkpoints"
    for name in ("best.ckpt", "last.ckpt"):
        if (folder / name).is_file():
            return folder / name
    others = ", ".join(sorted(path.name for path in folder.glob("*.ckpt"))) or "none"
    raise FileNotFoundError(f"no best.ckpt or last.ckpt in {folder}; checkpoints: {others}")


def run_config(run: Path) -> Path:
    """Return the latest config of a run, which has the highest number.

    Raises:
        FileNotFoundError: If it has none.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("config.yaml", "config-2.yaml", "config-10.yaml"):
        ...     (folder / name).touch()
        >>> run_config(folder).name
        'config-10.yaml'
    """
    names = {path.name: path for path in run.glob("config*.yaml")}
    found = {
        int(match[1] or 1): path
        for name, path in names.items()
        if (match := re.fullmatch(r"config(?:-(\d+))?\.yaml", name))
    }
    if not found:
        raise FileNotFoundError(f"no config.yaml in {run}; pass --config FILE and --ckpt_path FILE")
    return found[max(found)]
