"""`visattn doctor`: whether all that the toolkit needs is there, and how to get what is not."""

import argparse
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from visattn.commands.doctor.imports import try_imports
from visattn.commands.doctor.machine import data_notices, device_notices, disk_notices
from visattn.commands.doctor.notices import Notice, notice_lines, terminal_colors
from visattn.commands.doctor.packages import (
    TRIED,
    extra_notices,
    opencv_notice,
    package_notices,
    python_notice,
)
from visattn.commands.doctor.requirements import installed
from visattn.commands.options.parser import CommandParser

_DESCRIPTION = """\
Look whether all that the toolkit needs is here: packages and their versions, devices, extras, room
on the disk, shared memory, data. Nothing is written, nothing is fetched."""

_EPILOG = """\
  ok       fine
  note     worth knowing; nothing has to be done
  amiss    a part of the toolkit cannot be used, or is slow
  broken   what everything needs is not there; the exit code is then 1"""
_WIDEST = 100


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn doctor",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="all that was found as JSON")
    return made


def main(argv: Sequence[str]) -> int:
    """Print what was found; return 0, or 1 if something that everything needs is broken."""
    asked = parser().parse_args(argv)
    notices = examined(Path.cwd())
    broken = [one for one in notices if one.state == "broken"]
    if asked.json:
        told = {
            "visattn": installed("visattn"),
            "system": platform.platform(),
            "usable": not broken,
            "notices": [asdict(one) for one in notices],
        }
        print(json.dumps(told, indent=1))
        return 1 if broken else 0
    columns = min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)
    print(f"visattn {installed('visattn') or '(not installed)'} on {platform.platform()}\n")
    print("\n".join(notice_lines(notices, columns, colored=terminal_colors())))
    print(f"\n{_verdict(notices)}")
    return 1 if broken else 0


def examined(folder: Path) -> list[Notice]:
    """Return all that is to be said of this machine.

    Args:
        folder: Where commands are typed.
    """
    trials = try_imports(list(TRIED))
    return [
        python_notice(),
        *package_notices(trials),
        opencv_notice(trials),
        *extra_notices(),
        *device_notices(trials.facts),
        *disk_notices(folder),
        *data_notices(),
    ]


def _verdict(notices: Sequence[Notice]) -> str:
    """Return what it all comes to."""
    broken = [one.name for one in notices if one.state == "broken"]
    amiss = [one.name for one in notices if one.state == "amiss"]
    if broken:
        return f"Broken: {', '.join(broken)}. The toolkit cannot be used so."
    if amiss:
        return f"All that everything needs is here. Amiss: {', '.join(amiss)}."
    return "All is well."
