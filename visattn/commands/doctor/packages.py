"""What `visattn doctor` says of packages: versions, pairs, extras, OpenCV."""

import sys
from collections.abc import Iterator

from visattn.commands.doctor.imports import ImportTrials
from visattn.commands.doctor.notices import Notice
from visattn.commands.doctor.requirements import Requirement, installed, requirements_of, within

PYTHON = (3, 11)
TRIED = ("torch", "torchvision", "numpy", "PIL", "timm", "lightning", "cv2")
"""Modules that are imported to see whether they can be; one that fails spoils those behind it."""

EXTRAS = {
    "onnx": ("models as ONNX files", ("onnx", "onnxscript", "onnxruntime")),
    "hf": ("models from a directory of the Hugging Face kind", ("transformers",)),
    "webdataset": ("training on shards that stream from elsewhere", ("webdataset",)),
}
"""For each extra what it is for, and its packages. `dev` is for work on the toolkit itself."""

OPENCV = (
    "opencv-python",
    "opencv-contrib-python",
    "opencv-python-headless",
    "opencv-contrib-python-headless",
)
_MODULES = {"pillow": "PIL"}
_SAME = """\
every OpenCV wheel fills the same folder; keep one:
  pip uninstall -y {wheels}
  pip install --force-reinstall {kept}"""
_LIBRARIES = """\
contours need it. On Debian and Ubuntu:
  apt-get install libxcb1 libgl1 libglib2.0-0
or take the wheel that needs none of them:
  pip uninstall -y {wheels}
  pip install --force-reinstall opencv-python-headless"""


def python_notice() -> Notice:
    """Return whether this Python is new enough.

    Example:
        >>> python_notice().state
        'ok'
    """
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, PYTHON))
    if sys.version_info[:2] < PYTHON:
        remedy = f"make an environment with Python {wanted} or newer"
        return Notice("packages", "Python", "broken", f"{version}, {wanted} is needed", remedy)
    return Notice("packages", "Python", "ok", f"{version} at {sys.executable}")


def package_notices(trials: ImportTrials) -> Iterator[Notice]:
    """Yield what is to be said of the packages that everything needs.

    Args:
        trials: What became of importing them.
    """
    needed = [one for one in _needed() if not one.extra]
    if not needed:
        told = "the package itself is not installed, so nobody knows what it needs"
        yield Notice("packages", "visattn", "amiss", told, "  pip install -e .")
    yield _pair_notice(trials)
    others: list[str] = []
    for one in needed:
        if one.name in ("torch", "torchvision", *OPENCV):
            continue
        wrong = _wrong(one, trials)
        if wrong is None:
            others.append(f"{one.name} {installed(one.name)}")
        else:
            yield wrong
    if others:
        yield Notice("packages", "others", "ok", ", ".join(others))


def extra_notices() -> Iterator[Notice]:
    """Yield for each extra whether it is there, what it is for, and how to get it.

    Example:
        >>> [notice.name for notice in extra_notices()][:2]
        ['onnx', 'hf']
    """
    bounds = {one.name: one.bounds for one in _needed() if one.extra}
    for name, (purpose, packages) in EXTRAS.items():
        command = f"  pip install 'visattn[{name}]'"
        have = {package: installed(package) for package in packages}
        lacking = [package for package, version in have.items() if not version]
        old = [one for one in packages if have[one] and not within(have[one], bounds.get(one, ""))]
        if lacking == list(packages):
            yield Notice("extras", name, "note", f"not installed; {purpose}", command)
        elif lacking:
            told = f"{purpose}: {', '.join(lacking)} missing"
            yield Notice("extras", name, "amiss", told, command)
        elif old:
            told = f"{purpose}: {old[0]} {have[old[0]]}, but {bounds[old[0]]} is needed"
            yield Notice("extras", name, "amiss", told, command)
        else:
            versions = ", ".join(f"{package} {version}" for package, version in have.items())
            yield Notice("extras", name, "ok", f"{purpose}: {versions}")


def opencv_notice(trials: ImportTrials) -> Notice:
    """Return how OpenCV stands; only contours need it, so that it spoils nothing else.

    Args:
        trials: What became of importing `cv2`.
    """
    wheels = [wheel for wheel in OPENCV if installed(wheel)]
    failed = trials.failed.get("cv2", "")
    named = ", ".join(f"{wheel} {installed(wheel)}" for wheel in wheels)
    if len(wheels) > 1:
        headless = [wheel for wheel in wheels if wheel.endswith("headless")]
        remedy = _SAME.format(wheels=" ".join(wheels), kept=(headless or wheels)[0])
        return Notice(
            "packages", "OpenCV", "amiss", f"{len(wheels)} wheels at once: {named}", remedy
        )
    if not wheels:
        told = "not installed; contours need it"
        return Notice("packages", "OpenCV", "amiss", told, "  pip install opencv-python")
    if failed:
        told = f"{named} cannot be imported: {failed}"
        return Notice("packages", "OpenCV", "amiss", told, _LIBRARIES.format(wheels=wheels[0]))
    return Notice("packages", "OpenCV", "ok", named)


def _needed() -> list[Requirement]:
    return requirements_of("visattn") if installed("visattn") else []


def _pair_notice(trials: ImportTrials) -> Notice:
    """Return whether torch and torchvision are there and belong together."""
    names = ("torch", "torchvision")
    versions = {name: installed(name) for name in names}
    remedy = "  pip install --force-reinstall torch torchvision"
    if lacking := [name for name in names if not versions[name]]:
        told = f"{' and '.join(lacking)} missing"
        return Notice("packages", "torch", "broken", told, remedy)
    named = f"{versions['torch']} with torchvision {versions['torchvision']}"
    wanted = next((one.bounds for one in requirements_of("torchvision") if one.name == "torch"), "")
    for one in _needed():
        if one.name in names and not one.extra and not within(versions[one.name], one.bounds):
            told = f"{named}, but {one.name}{one.bounds} is needed"
            return Notice("packages", "torch", "broken", told, remedy)
    if not within(versions["torch"], wanted):
        told = f"{named}: no pair, this torchvision is made for torch{wanted}"
        return Notice("packages", "torch", "broken", told, remedy)
    for name in names:
        if reason := trials.failed.get(name):
            told = f"{named}: {name} cannot be imported: {reason}"
            return Notice("packages", "torch", "broken", told, remedy)
    return Notice("packages", "torch", "ok", named)


def _wrong(one: Requirement, trials: ImportTrials) -> Notice | None:
    """Return what is wrong with a package, if something is."""
    version = installed(one.name)
    command = f"  pip install '{one.name}{one.bounds}'"
    if not version:
        return Notice("packages", one.name, "broken", "missing", command)
    if not within(version, one.bounds):
        return Notice(
            "packages", one.name, "broken", f"{version}, but {one.bounds} is needed", command
        )
    reason = trials.failed.get(_MODULES.get(one.name, one.name))
    if reason is None or {"torch", "torchvision"} & trials.failed.keys():
        return None  # or it follows from what is said of torch
    told = f"{version} cannot be imported: {reason}"
    again = f"  pip install --force-reinstall '{one.name}{one.bounds}'"
    return Notice("packages", one.name, "broken", told, again)
