"""The front door: a word leads to its command.

Only the standard library is imported here, so that help, the version and the answer to a typo
come at once. A command's own module is imported when the command is asked for; it imports torch
when it really runs.
"""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from visattn.commands.options.output_streams import prepare_streams, print_remark, silence

# word: (one line of help, the module whose main(argv) -> exit code does the work)
COMMANDS = {
    "fit": ("train a task from a YAML file", "visattn.training.cli.entry"),
    "validate": ("score a checkpoint on the validation split", "visattn.training.cli.entry"),
    "test": ("score a checkpoint on the test split", "visattn.training.cli.entry"),
    "caption": (
        "say what is on images, and where each word looked",
        "visattn.commands.caption.command",
    ),
    "overlay": ("show where any model looked, on the photos", "visattn.commands.overlay.command"),
    "glimpse": ("say what images show, and follow the eye", "visattn.commands.glimpse"),
    "export": ("turn a training checkpoint into one safetensors file", "visattn.commands.export"),
    "score": ("score captions or maps against what is known", "visattn.commands.score.command"),
    "blocks": ("list attention blocks, or tell all about one", "visattn.commands.blocks"),
    "data": ("write a data set as files to look at", "visattn.commands.data.command"),
    "doctor": ("look whether all that is needed is here", "visattn.commands.doctor.command"),
}
# These read their own word again, because LightningCLI has them as subcommands.
_KEEPS_ITS_WORD = {"fit", "validate", "test"}

_OPTIONS = ["--help", "--version", "--debug"]
_CLOSING = """\
--debug, before the command, or VISATTN_DEBUG=1 shows where an error came from.

first steps:
  visattn doctor                                    is all here, and if not, how to get it
  visattn fit --config configs/scenes_demo.yaml     train a captioner; nothing to download
  visattn test --run runs/scenes_demo/1
  visattn caption PHOTO --run runs/scenes_demo/1 --out images

exit codes: 0 done, 1 failed or done in part, 2 not understood, 130 interrupted,
            141 nobody reads on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success, 1 a command that failed or finished only in part, 2 a command line that cannot
    be followed, 130 an interruption from the keyboard, 141 a reader of our output that left.

    What a user can cause (`ValueError`, `OSError`, what derives from them, and a package that is
    not there) ends in one line on stderr; `--debug` before the word, or VISATTN_DEBUG=1 in the
    environment, shows the whole traceback. Any other exception is a fault of ours and is shown in
    full.

    Args:
        argv: The words after the program's name; those of the process if left out.

    Example:
        >>> main(["--version"])
        visattn 0.1.0
        0
    """
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("VISATTN_DEBUG", "") not in {"", "0"}
    if words[:1] == ["--debug"]:
        debug = True
        del words[0]
    try:
        code = _dispatch(words)
    except SystemExit as stop:  # argparse and LightningCLI leave this way
        code = _exit_code(stop)
    except BrokenPipeError:  # the reader of our output, `head` for one, has seen enough
        code = 141
    except KeyboardInterrupt as stop:
        code = _fail(f"interrupted{f'; {stop}' if str(stop) else ''}", 130)
    except (ValueError, OSError, ImportError) as error:
        if debug:
            traceback.print_exc()
        code = _fail(_told(error), 1)
    return _handed_over(code)


def _dispatch(words: list[str]) -> int:
    """Answer the questions that need no command, and hand the rest to its module."""
    if not words or words[0] in {"-h", "--help", "help"}:
        print(help_text(), end="")
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        from importlib.metadata import version

        print(f"visattn {version('visattn')}")
        return 0
    word, rest = words[0], words[1:]
    if word not in COMMANDS:
        return _unknown(word)
    module = importlib.import_module(COMMANDS[word][1])
    return int(module.main([word, *rest] if word in _KEEPS_ITS_WORD else rest) or 0)


def help_text() -> str:
    """Return what `visattn --help` prints.

    Example:
        >>> "caption" in help_text()
        True
    """
    width = max(map(len, COMMANDS))
    rows = [f"  {word:{width}}  {line}" for word, (line, _) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: visattn [--version] [--debug] COMMAND ...",
            "",
            "Vision attention: train it, and see where it looked.",
            "",
            "commands (visattn COMMAND --help says more):",
            *rows,
            "",
            _CLOSING,
        ]
    )


def _unknown(word: str) -> int:
    """Say which command or option may have been meant."""
    kind, known = ("command", list(COMMANDS))
    if word.startswith("-"):
        kind, known = ("option", _OPTIONS)
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return _fail(f"no {kind} {word!r}; {hint}", 2)


def _told(error: Exception) -> str:
    """Return an error as one sentence for people."""
    told = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ImportError):
        return f"{told}\nvisattn: visattn doctor looks for what is missing"
    return told


def _fail(message: str, code: int) -> int:
    print_remark(message)
    return code


def _exit_code(stop: SystemExit) -> int:
    """Return the exit code that Python itself would give to `stop`."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    return _fail(str(stop.code), 1)


def _handed_over(code: int) -> int:
    """Return the code, once all that was printed has left; if it cannot leave, another one."""
    if sys.stdout is None:  # closed from the beginning
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except OSError as error:
        silence(sys.stdout)
        return code or _fail(f"what was printed could not be written: {error.strerror}", 1)
    if code == 141:
        silence(sys.stdout)
    return code
