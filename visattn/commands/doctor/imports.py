"""Whether packages can be imported: tried in a process of its own, which may die of it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

_SECONDS = 90  # a cold disk takes its time; longer than this and something hangs
_SIGN = "visattn-trial "
_PROGRAM = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
def say(**told):
    print("\\nSIGN" + json.dumps(told), flush=True)
for name in sys.argv[1:]:
    say(trying=name)
    try:
        importlib.import_module(name)
    except BaseException as error:
        lines = str(error).strip().splitlines()
        say(failed=name, reason=type(error).__name__ + (": " + lines[0] if lines else ""))
    else:
        say(fine=name)
torch = sys.modules.get("torch")
if torch is not None and hasattr(torch, "cuda"):
    say(facts={
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpus": [
            [torch.cuda.get_device_name(at), torch.cuda.get_device_properties(at).total_memory]
            for at in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        ],
        "mps": torch.backends.mps.is_available(),
    })
""".replace("SIGN", _SIGN)


@dataclass
class ImportTrials:
    """What became of importing packages, one after the other, in one process.

    Args:
        fine: Those that can be imported.
        failed: Why the others cannot.
        facts: What torch says of its devices; empty if torch cannot be imported.
    """

    fine: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def try_imports(names: list[str], *, seconds: float = _SECONDS) -> ImportTrials:
    """Import packages in a new process and say what became of each.

    A package that kills the process, as one built for another processor does, counts as failed, and
    the ones after it are tried in another process.

    Args:
        names: Of modules, in this order.
        seconds: A process that takes longer is stopped.

    Example:
        >>> try_imports(["json", "no_such_module"]).failed
        {'no_such_module': "ModuleNotFoundError: No module named 'no_such_module'"}
    """
    found, left = ImportTrials(), list(names)
    while left:
        output, end = _run(left, seconds)
        trying = ""
        for line in output.splitlines():
            if not line.startswith(_SIGN + "{"):
                continue
            told = json.loads(line.removeprefix(_SIGN))
            trying = told.get("trying", trying)
            if "fine" in told:
                found.fine.append(told["fine"])
            if "failed" in told:
                found.failed[told["failed"]] = told["reason"]
            found.facts |= told.get("facts", {})
        known = {*found.fine, *found.failed}
        if not end or (trying in known and not set(left) - known):
            break  # all was tried; what came after that, as reading the devices, is lost
        found.failed[trying if trying and trying not in known else left[0]] = end
        left = [name for name in left if name not in {*found.fine, *found.failed}]
    return found


def _run(names: list[str], seconds: float) -> tuple[str, str]:
    """Return what the process said, and how it ended if it did not end well."""
    # -P: what lies in the working folder must not take the place of a package.
    command = [sys.executable, "-P", "-c", _PROGRAM, *names]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"it takes over {seconds:g} seconds"
    code = done.returncode
    how = f"it kills Python (signal {-code})" if code < 0 else f"Python ends with code {code}"
    return done.stdout.decode(errors="replace"), how if code else ""
