"""`visattn doctor`: check versions, imports, devices and disk space of an installation."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from visattn.commands.options import OUTPUT, CommandParser
from visattn.commands.streams import activity, print_lines
from visattn.io.safe_text import parse_json

_DESCRIPTION = """\
Check the installation: packages and their versions, optional extras, devices, disk space, shared
memory, and the data folder. Writes and downloads nothing."""

_EPILOG = """\
  ok       fine
  info     nothing has to be done
  warning  a part of visattn cannot be used, or is slow
  error    visattn cannot be used; the exit code is then 1"""

MODULES = ("torch", "torchvision", "numpy", "PIL", "timm", "lightning", "cv2")
"""Modules whose import is tested, each after those it depends on."""
EXTRAS = {
    "onnx": "export of models to ONNX",
    "hf": "Hugging Face models from a directory",
    "hub": "models of visattn on the Hugging Face hub",
    "parquet": "tables of results as parquet",
    "datasets": "training on tables of Hugging Face",
    "remote": "photos and tables in stores and at URLs",
    "webdataset": "training on streamed shards",
    "heif": "photos in HEIC and HEIF files",
}
_PACKAGES = {"PIL": "pillow", "cv2": "opencv-python"}  # of modules with another name
_OPENCV_WHEELS = ("opencv-python", "opencv-contrib-python",
                  "opencv-python-headless", "opencv-contrib-python-headless")  # fmt: skip
_TIMEOUT = 90  # seconds; a cold disk is slow
# Packages may print when they are imported, without a line end: results have lines of their own.
_PROBE = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        reason = ""
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    print("\\nvisattn-doctor", json.dumps([name, reason]), flush=True)
torch = sys.modules.get("torch")
if hasattr(torch, "cuda"):
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = [[gpu.name, gpu.total_memory] for gpu in properties] if torch.cuda.is_available() else []
    facts = {"threads": torch.get_num_threads(), "cuda": torch.version.cuda, "gpus": gpus,
             "mps": torch.backends.mps.is_available()}
    print("\\nvisattn-doctor", json.dumps(["", facts]), flush=True)
"""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Args:
        section: Heading in the report.
        name: Subject of the check.
        status: `ok`, `info`, `warning` or `error`.
        message: What was found.
        fix: Command or advice.
    """

    section: str
    name: str
    status: Literal["ok", "info", "warning", "error"]
    message: str
    fix: str = ""


_EXAMPLES = (
    "visattn doctor",
    "visattn doctor --json",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn doctor", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.group(OUTPUT).add_argument(
        "--json", action="store_true", help="print the report as JSON"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a report; return 0, or 1 if a check ends with an error."""
    args = build_parser().parse_args(argv)
    with activity("importing the packages"):
        failures, facts = try_imports(MODULES)
    checks = [
        Check("packages", "Python", "ok", f"{platform.python_version()} at {sys.executable}"),
        *check_packages(failures),
        *check_extras(),
        check_devices(facts),
        *check_storage(Path.cwd(), Path("/dev/shm")),
        check_data_folder(),
    ]
    usable = all(check.status != "error" for check in checks)
    version = installed_version("visattn") or "(not installed)"
    system = platform.platform()
    if args.json:
        report = {"visattn": version, "platform": system, "usable": usable}
        print(json.dumps({**report, "checks": [asdict(check) for check in checks]}, indent=1))
    else:
        print_lines([f"visattn {version} on {system}", *_report_lines(checks)])
    return 0 if usable else 1


def _report_lines(checks: Sequence[Check]) -> Iterator[str]:
    section = ""
    for check in checks:
        if check.section != section:
            section = check.section
            yield from ("", section)
        yield f"  {check.status:7}  {check.name:14}  {check.message}"
        yield from (f"{'':27}{line}" for line in check.fix.splitlines())
    problems = [check.name for check in checks if check.status in ("warning", "error")]
    yield from ("", f"problems: {', '.join(problems)}" if problems else "no problems")


def try_imports(
    modules: Sequence[str], *, timeout: float = _TIMEOUT
) -> tuple[dict[str, str], dict[str, Any]]:
    """Import modules in another process; return the failures, and what torch reports of devices.

    A module that crashes Python or hangs is reported, and the modules after it are not tested.

    Args:
        modules: Names of modules, in this order.
        timeout: Seconds after which the process is killed.

    Example:
        >>> try_imports(["json", "no_such_module"])[0]
        {'no_such_module': "ModuleNotFoundError: No module named 'no_such_module'"}
    """
    # -P: modules in the working directory must not shadow packages.
    command = [sys.executable, "-P", "-c", _PROBE, *modules]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
        output = process.stdout
        ending = f"Python exits with code {process.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        ending = f"the import takes over {timeout:g} seconds"
    results: dict[str, Any] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("visattn-doctor ["):
            name, result = parse_json(line.removeprefix("visattn-doctor "))
            results[name] = result
    facts = results.pop("", {})
    if untested := [name for name in modules if name not in results]:
        # Modules are imported in order: the first without a result crashed or hung.
        results[untested[0]] = ending
    return {name: reason for name, reason in results.items() if reason}, facts


def installed_version(package: str) -> str:
    """Return the version of an installed package, or "".

    Example:
        >>> installed_version("no-such-package")
        ''
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def requirements(package: str, extra: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield name, version range and whether it is satisfied, of the requirements of a package.

    Args:
        package: An installed package; nothing is yielded for others.
        extra: An extra, whose requirements are yielded instead.

    Example:
        >>> "torch" in [name for name, _, _ in requirements("visattn")]
        True
    """
    from packaging.requirements import Requirement

    for text in (metadata.requires(package) or []) if installed_version(package) else []:
        requirement = Requirement(text)
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if needed and (bool(extra) == ("extra" in str(requirement.marker))):
            version = installed_version(requirement.name)
            satisfied = bool(version) and requirement.specifier.contains(version, prereleases=True)
            yield requirement.name, str(requirement.specifier), satisfied


def check_packages(failures: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of the required packages, those without problems in one line.

    Args:
        failures: Reasons of failed imports by module, as `try_imports` returns them.
    """
    reasons = {_PACKAGES.get(module, module): reason for module, reason in failures.items()}
    if not installed_version("visattn"):
        fix = "pip install -e ."
        yield Check("packages", "visattn", "warning", "not installed: requirements unknown", fix)
    fine: list[str] = []
    pairs = [*requirements("visattn"), *(r for r in requirements("torchvision") if r[0] == "torch")]
    for name, versions, satisfied in pairs:
        version = installed_version(name)
        if name in _OPENCV_WHEELS:
            yield check_opencv(reasons.get("opencv-python", ""))
        elif not satisfied:
            message = f"{version or 'missing'}; {versions or 'any version'} is needed"
            yield Check("packages", name, "error", message, f"pip install '{name}{versions}'")
        elif name in reasons:
            message = f"{version} cannot be imported: {reasons[name]}"
            fix = f"pip install --force-reinstall '{name}{versions}'"
            yield Check("packages", name, "error", message, fix)
        elif f"{name} {version}" not in fine:
            fine.append(f"{name} {version}")
    if fine:
        yield Check("packages", "requirements", "ok", ", ".join(fine))


def check_opencv(reason: str) -> Check:
    """Return the check of OpenCV, which no command needs so far; any of its wheels will do.

    Args:
        reason: Of a failed import; "" if it can be imported.
    """
    wheels = [f"{wheel} {installed_version(wheel)}" for wheel in _OPENCV_WHEELS]
    versions = ", ".join(wheel for wheel in wheels if not wheel.endswith(" "))
    if versions and not reason:
        return Check("packages", "OpenCV", "ok", versions)
    message = f"{versions} cannot be imported: {reason}" if versions else "not installed"
    fix = "pip install --force-reinstall opencv-python-headless"
    return Check("packages", "OpenCV", "warning", f"{message}; no command needs it so far", fix)


def check_extras() -> Iterator[Check]:
    """Yield a check for each extra of visattn."""
    for extra, purpose in EXTRAS.items():
        packages = list(requirements("visattn", extra))
        missing = [f"{name}{versions}" for name, versions, satisfied in packages if not satisfied]
        present = [name for name, _, _ in packages if installed_version(name)]
        versions = ", ".join(f"{name} {installed_version(name)}" for name in present)
        fix = f"pip install 'visattn[{extra}]'"
        if not missing:
            yield Check("extras", extra, "ok", f"{purpose}: {versions}")
        elif present:
            yield Check("extras", extra, "warning", f"{purpose}: needs {', '.join(missing)}", fix)
        else:
            yield Check("extras", extra, "info", f"not installed; {purpose}", fix)


def check_devices(facts: Mapping[str, Any]) -> Check:
    """Return the check of processors and GPUs.

    Args:
        facts: What torch reports, as `try_imports` returns it.

    Example:
        >>> check_devices({"threads": 2, "gpus": [["A", 8 * 10**9]]}).message
        'cpu (2 threads); cuda: A (8 GB)'
    """
    if not facts:
        return Check("machine", "devices", "info", "unknown without torch")
    message = f"cpu ({facts['threads']} threads)"
    if gpus := facts.get("gpus"):
        message += "; cuda: " + ", ".join(f"{name} ({size / 1e9:.0f} GB)" for name, size in gpus)
    elif facts.get("mps"):
        message += "; mps"
    else:
        built = f"; this torch is built for CUDA {facts['cuda']}" if facts.get("cuda") else ""
        message += f"; no GPU{built}"
    return Check("machine", "devices", "ok", message)


def check_storage(folder: Path, shared_memory: Path) -> Iterator[Check]:
    """Yield the checks of disk space and shared memory.

    Args:
        folder: Working directory, in which runs are saved.
        shared_memory: Mount point of shared memory.
    """
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK | os.X_OK)
    status = "error" if free < 2e7 or not writable else "warning" if free < 1e9 else "ok"
    message = f"{free / 1e9:.2f} GB free in {folder}{'' if writable else ', which is not writable'}"
    fix = "" if status == "ok" else "make room, or work in another folder: runs are saved here"
    yield Check("machine", "disk", status, message, fix)
    if sys.platform.startswith("linux"):
        free = shutil.disk_usage(shared_memory).free if shared_memory.is_dir() else 0
        message = f"{free / 1e9:.2f} GB free in {shared_memory}"
        fix = "data loader workers need it: docker run --shm-size=1g, or num_workers: 0"
        low = free < 256e6
        yield Check("machine", "shared memory", "warning" if low else "ok", message, fix * low)


def check_data_folder() -> Check:
    """Return the check of VISATTN_DATA, where configs look for data sets."""
    folder = os.environ.get("VISATTN_DATA", "")
    if folder and Path(folder).is_dir():
        return Check("machine", "VISATTN_DATA", "ok", folder)
    fix = "export VISATTN_DATA=FOLDER"
    if folder:
        return Check("machine", "VISATTN_DATA", "warning", f"{folder} is not a folder", fix)
    message = "not set; configs with real photos look for their data there"
    return Check("machine", "VISATTN_DATA", "info", message, fix)
