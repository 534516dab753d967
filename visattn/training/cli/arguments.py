"""What was typed after `fit`, `validate` or `test`: mistakes seen at once, a run filled in.

Only the standard library is imported: who forgot `--config` should not wait for Lightning.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

from visattn.training.run_dir.find import finished_run, run_checkpoint, run_config, run_of

_CONFIG = ("--config", "-c")
_ENDINGS = (".yaml", ".yml")
_SHORT = ("--config", "--run", "--ckpt_path", "--dry-run", "--print_config", "--seed_everything")
# Lightning's command line answers these itself.
_QUESTIONS = ("--print_config", "--model.help", "--data.help", "--help")


def values(options: Sequence[str], *names: str) -> list[str]:
    """Return the values of an option, each time it was given.

    Args:
        options: What was typed.
        names: Of the option.

    Example:
        >>> values(["--config", "a.yaml", "--run=here", "-c", "b.yaml"], "--config", "-c")
        ['a.yaml', 'b.yaml']
    """
    found: list[str] = []
    for at, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in names:
            found += [value] if equals else options[at + 1 : at + 2]
    return found


def mistake(word: str, options: Sequence[str]) -> str:
    """Return what is plainly wrong with a command line, or nothing.

    Args:
        word: `fit`, `validate` or `test`.
        options: What was typed after it.

    Example:
        >>> print(mistake("fit", ["scenes.yaml"]))
        what is scenes.yaml? did you mean --config scenes.yaml?
        >>> mistake("fit", ["--model", "CaptioningTask", "--data", "ScenesDataModule"])
        ''
    """
    if any(option.partition("=")[0] in _QUESTIONS for option in options):
        return ""
    if stray := _stray(word, options):
        return stray
    for name in values(options, *_CONFIG):
        if missing := _missing(name):
            return missing
    built = any(option.startswith(("--model", "--data")) for option in options)
    if values(options, *_CONFIG) or built:
        return ""
    if word != "fit" and (values(options, "--run") or values(options, "--ckpt_path")):
        return ""
    meant = _meant(options)
    if word == "fit":
        return f"fit needs --config FILE.yaml: one experiment, as in configs/{meant}"
    return (
        f"{word} needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and "
        f"--ckpt_path FILE: without a checkpoint the weights are random{meant}"
    )


def completed(word: str, options: Sequence[str]) -> list[str]:
    """Return the words, for `validate` and `test` with what the run that they name knows already.

    Its config comes first, so that what was typed has the last word; its folder and its checkpoint
    come last, since a config names others, or none.

    Args:
        word: `fit`, `validate` or `test`.
        options: What was typed after it.

    Raises:
        FileNotFoundError: If the run lacks its config or a checkpoint, and none was typed.
        ValueError: If the folder of the run is none, or holds several runs.

    Example:
        >>> completed("fit", ["--config", "a.yaml", "--run", "here"])
        ['--config', 'a.yaml', '--run', 'here']
    """
    words, runs = list(options), values(options, "--run")
    configs, checkpoints = values(options, *_CONFIG), values(options, "--ckpt_path")
    if word == "fit" or (configs and checkpoints):
        return words
    if not runs and not checkpoints:
        return words
    run = finished_run(Path(runs[-1])) if runs else _home(Path(checkpoints[-1]))
    words = ["--config", str(run_config(run)), *words, "--run", str(run)]
    return words if checkpoints else [*words, "--ckpt_path", str(run_checkpoint(run))]


def _home(checkpoint: Path) -> Path:
    """Return the folder of the run that a checkpoint lies in."""
    if not checkpoint.is_file():
        raise FileNotFoundError(
            f"no checkpoint at {checkpoint}; `visattn fit` says where it saves them"
        )
    return run_of(checkpoint)


def _stray(word: str, options: Sequence[str]) -> str:
    """Return what to say of a file or folder that no option leads to."""
    for at, given in enumerate(options):
        if given.startswith("-") or (at and _takes_a_value(options[at - 1])):
            continue
        if given.endswith(_ENDINGS):
            return f"what is {given}? did you mean --config {given}?"
        if given.endswith(".ckpt"):
            return f"what is {given}? did you mean --ckpt_path {given}?"
        if word != "fit" and Path(given).is_dir():
            return f"what is {given}? did you mean --run {given}?"
    return ""


def _takes_a_value(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _missing(name: str) -> str:
    """Return what to say of a config that is not there; a text that is a config itself is fine."""
    path = Path(name)
    if "\n" in name or "{" in name or path.is_file():
        return ""
    if "://" in name:
        return f"{name} lies on another machine; download it, look at it, and name the file"
    if path.is_dir():
        return f"--config {name} is a folder; give one of the files in it"
    shelves = dict.fromkeys((path.parent, Path("configs"), Path()))
    there = {
        str(file): file.stem
        for shelf in shelves
        if shelf.is_dir()
        for file in sorted(shelf.glob("*.yaml"))
    }
    close = difflib.get_close_matches(path.stem, there.values(), n=1)
    meant = [file for file, stem in there.items() if stem in close]
    hint = f"; did you mean {meant[0]}?" if meant else ""
    return f"there is no config {name}{hint}"


def _meant(options: Sequence[str]) -> str:
    """Return which short option an unknown one is close to, as the end of a sentence."""
    for option in options:
        name = option.partition("=")[0]
        if name.startswith("--") and "." not in name and name not in _SHORT:
            close = difflib.get_close_matches(name, _SHORT, n=1)
            if close:
                return f"; for {name}, did you mean {close[0]}?"
    return ""
