"""Command line of visattn: dispatches to the modules of the commands.

Imports only the standard library, so that help, version and error messages are instant. The module
of a command is imported when the command is selected; it imports torch when it runs.
"""

import contextlib
import functools
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from visattn.commands.streams import prepare_streams
from visattn.io.messages import did_you_mean, own_name
from visattn.io.safe_text import escaped_warnings, print_message, silence, terminal_text

# command: (one line of help, module with main(argv) -> exit code)
COMMANDS = {
    "demo": (
        "caption photos and show where a classifier looks",
        "visattn.commands.demo:demo",
    ),
    "fit": ("train a task from a YAML file", "visattn.training.command"),
    "validate": ("score a checkpoint on the validation split", "visattn.training.command"),
    "test": ("score a checkpoint on the test split", "visattn.training.command"),
    "compare": (
        "train a config with several blocks and seeds, and compare the scores",
        "visattn.commands.compare:compare",
    ),
    "caption": (
        "caption images, with the attention of each word",
        "visattn.commands.caption:caption",
    ),
    "overlay": (
        "draw attention and attribution maps of any model on photos",
        "visattn.commands.overlay:overlay",
    ),
    "glimpse": (
        "classify images with a glimpse model, with its scan paths",
        "visattn.commands.glimpse:glimpse",
    ),
    "ask": (
        "answer questions about images, with the attention of each hop",
        "visattn.commands.ask:ask",
    ),
    "detect": (
        "find objects in images, with the attention of each query",
        "visattn.commands.detect:detect",
    ),
    "segment": (
        "segment images, with the attention gates of the model",
        "visattn.commands.segment:segment",
    ),
    "export": (
        "convert a training checkpoint to a safetensors file",
        "visattn.commands.export:export",
    ),
    "score": ("score captions or maps", "visattn.commands.score:SCORES"),
    "models": (
        "list the trained models that come with visattn, or print the card of one",
        "visattn.commands.lists:models",
    ),
    "configs": (
        "list the configs of experiments, or print one",
        "visattn.commands.lists:configs",
    ),
    "blocks": ("list attention blocks, or describe one", "visattn.commands.lists:blocks"),
    "data": ("write a data set as files", "visattn.commands.data:DATA_SETS"),
}
# Subcommands of LightningCLI, which parses their names again.
_LIGHTNING_COMMANDS = {"fit", "validate", "test"}

_OPTIONS = ["--help", "--version", "--debug"]
_CLOSING = """\
Options with several values take them after one flag: --method gradcam rise.
Results go to stdout as tab-separated rows; progress, messages and the file to open go to stderr.
--debug before the command, or VISATTN_DEBUG=1, prints the traceback of an error.

first steps:
  visattn demo                      caption six photos, show where a classifier looks, open the page
  visattn caption MY.jpg            caption your photo, with the map of each word
  visattn overlay MY.jpg            show where a classifier looks on it
  visattn fit --config scenes_demo  train a captioner in minutes, no download

exit codes: 0 success, 1 error or partial result, 2 usage error, 130 interrupted,
            141 output closed by its reader
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1: error or partial result; 2: usage error; 130: keyboard interrupt; 141: the reader
    of stdout has closed it.

    Errors that a user can cause (`ValueError`, `OSError` and their subclasses, and missing
    packages) are printed as one line on stderr; `--debug` before the command, or VISATTN_DEBUG=1 in
    the environment, adds the traceback. Any other exception is a bug and shown with its traceback.

    Args:
        argv: Arguments after the program name; by default those of the process.

    Example:
        >>> main(["--version"])
        visattn 0.1.0
        0
    """
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("VISATTN_DEBUG", "") not in {"", "0"}
    if arguments[:1] == ["--debug"]:
        debug = True
        del arguments[0]
    try:
        with escaped_warnings():
            code = _dispatch(arguments)
    except SystemExit as stop:  # argparse and LightningCLI leave this way
        code = _exit_code(stop)
    except BrokenPipeError:  # the reader of stdout, such as `head`, closed it
        code = 141
    except KeyboardInterrupt as stop:
        code = _fail(f"interrupted{f'; {stop}' if str(stop) else ''}", 130)
    except (ValueError, OSError, ImportError) as error:
        if debug:
            print_message(traceback.format_exc())
        code = _fail(_error_message(error), 1)
    return _flush_stdout(code)


def _dispatch(arguments: list[str]) -> int:
    """Handle help and version, and pass the other arguments to the module of the command."""
    if arguments[:1] == ["help"] and arguments[1:]:
        return _dispatch([*arguments[1:], "--help"])
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(help_text(), end="")
        return 0 if arguments else 2
    if arguments[0] in {"-V", "--version"}:
        from importlib.metadata import version

        print(f"visattn {version('visattn')}")
        return 0
    command = arguments[0]
    rest = arguments[1:]
    if command not in COMMANDS:
        return _report_unknown(command)
    words = arguments if command in _LIGHTNING_COMMANDS else rest
    module, _, function = COMMANDS[command][1].partition(":")
    if function:
        return _call(command, getattr(importlib.import_module(module), function), rest)
    return int(importlib.import_module(module).main(words) or 0)


def _call(command: str, function: Any, arguments: Sequence[str]) -> int:
    """Parse the arguments by the signature of a command's function, and call it."""
    import tyro

    for each in function.values() if isinstance(function, dict) else [function]:
        for hint in get_type_hints(each).values():
            for kind in getattr(hint, "__mro__", ()) if is_dataclass(hint) else ():
                _unwrap(kind)
        _unwrap(each)
    # Prefixes are omitted: --shard 2/4, not --loop.shard 2/4. Flags have no --no- form.
    options: dict[str, Any] = {
        "prog": f"visattn {command}",
        "args": arguments,
        "config": (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    }
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):  # tyro's errors repeat arguments unescaped
            if isinstance(function, dict):  # subcommands
                named = {name: _later(each) for name, each in function.items()}
                call = tyro.extras.subcommand_cli_from_dict(named, **options)
            else:
                call = tyro.cli(_later(function), **options)
    except SystemExit as stop:
        hints = filter(None, map(own_name, arguments if stop.code else ()))
        said.write("".join(f"{hint.removeprefix('; ')}\n" for hint in hints))
        raise
    finally:
        if said.getvalue():  # even an empty write fails if stderr is a file on a full disk
            sys.stderr.write(terminal_text(said.getvalue(), keep="\n"))
    return call()


def _later(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Return a function with the same signature that returns the call without running it."""

    @functools.wraps(function)
    def later(*args: Any, **kwargs: Any) -> Callable[[], int]:
        return functools.partial(function, *args, **kwargs)

    return later


def _unwrap(described: Any) -> None:
    """Join the lines of each argument in a docstring, since tyro keeps line breaks."""
    if described is not object:
        described.__doc__ = re.sub(r"\n {12,}(?=\S)", " ", described.__doc__ or "")


def help_text() -> str:
    """Return what `visattn --help` prints.

    Example:
        >>> "caption" in help_text()
        True
    """
    width = max(map(len, COMMANDS))
    rows = [f"  {name:{width}}  {line}" for name, (line, _) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: visattn [--version] [--debug] COMMAND ...",
            "",
            "Vision attention: train models, draw their attention maps, and evaluate them.",
            "",
            "commands (visattn COMMAND --help lists the options):",
            *rows,
            "",
            _CLOSING,
        ]
    )


def _report_unknown(name: str) -> int:
    """Report an unknown command or option, with the closest known one."""
    kind = "command"
    known = list(COMMANDS)
    if name.startswith("-"):
        kind, known = ("option", _OPTIONS)
    return _fail(f"unknown {kind} {name!r}; {did_you_mean(name, known, n=1)}", 2)


def _error_message(error: Exception) -> str:
    """Return the message of an error for stderr."""
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return message


def _fail(message: str, code: int) -> int:
    print_message(message)
    return code


def _exit_code(stop: SystemExit) -> int:
    """Return Python's exit code for `stop`."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    return _fail(str(stop.code), 1)


def _flush_stdout(code: int) -> int:
    """Flush stdout; return the exit code, or another one if the output cannot be written."""
    if sys.stdout is None:  # closed before the start
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except OSError as error:
        silence(sys.stdout)
        return code or _fail(f"the output could not be written: {error.strerror}", 1)
    if code == 141:
        silence(sys.stdout)
    return code
