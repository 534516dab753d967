"""Create a virtual environment in the checkout and install visattn into it.

    python3 tools/install.py core     .venv: runtime dependencies
    python3 tools/install.py dev      .venv: the same and development dependencies
    python3 tools/install.py peers    .venv-peers: other libraries, for comparisons

The Makefile runs this script. It uses only the standard library and Python 3.7 syntax, so that an
old Python can report its version. An environment with an interrupted install is recreated, because
pip regards partly copied packages as installed.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# name: (environment, arguments for pip, time and size)
KINDS = {
    "core": (".venv", ["-e", "."], "about 90 s and 5.5 GB, most of it torch"),
    "dev": (
        ".venv",
        ["-e", ".[dev,hf,datasets]"],
        "about 100 s and 6 GB, most of it torch",
    ),
    "peers": (".venv-peers", ["-r", "tools/peers.txt"], "about 100 s and 6 GB, most of it torch"),
}


def main() -> int:
    """Install one kind of environment and leave a stamp file for make."""
    parser = argparse.ArgumentParser(description="Install visattn into .venv.")
    parser.add_argument("kind", choices=sorted(KINDS))
    kind = parser.parse_args().kind
    problem = too_old() or not_a_checkout()
    if problem:
        print("install: " + problem, file=sys.stderr)
        return 2
    folder, arguments, cost = KINDS[kind]
    home = ROOT / folder
    try:
        if not usable(home):
            print(f"install: creating {folder} with Python {sys.version.split()[0]}", flush=True)
            make(home)
        print(f"install: {kind} packages into {folder} ({cost}; less if cached)", flush=True)
        run_pip(home, arguments)
    except RuntimeError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    for stamped in {"dev": ["core", "dev"]}.get(kind, [kind]):
        (home / f"{stamped}.stamp").touch()
    return 0


def too_old() -> str:
    """Return why this Python is unsupported; "" if it is supported."""
    match = re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    floor = (int(match.group(1)), int(match.group(2))) if match else (3, 11)
    if sys.version_info[:2] >= floor:
        return ""
    return (
        f"visattn needs Python {floor[0]}.{floor[1]} or newer, but {sys.executable} is "
        f"{sys.version.split()[0]}; choose a newer one: make PYTHON=python{floor[0]}.{floor[1]} ..."
    )


def not_a_checkout() -> str:
    """Return which file is missing from the checkout; "" if none."""
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        if not (ROOT / name).is_file():
            return f"{name} is missing from {ROOT}; is the checkout complete?"
    return ""


def usable(home: Path) -> bool:
    """Return whether `home` is a complete environment that can be updated."""
    python = home / "bin" / "python"
    if not python.exists() or (home / "installing").exists():
        return False
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([str(python), "-c", probe], capture_output=True).returncode == 0


def make(home: Path) -> None:
    """Create an empty environment, replacing any other."""
    shutil.rmtree(str(home), ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(home)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        shutil.rmtree(str(home), ignore_errors=True)
        raise RuntimeError(
            done.stdout.decode(errors="replace").strip()
            + f"\n{sys.executable} cannot create environments; on Debian and Ubuntu: "
            "apt-get install python3-venv, or choose another Python: make PYTHON=..."
        )


def run_pip(home: Path, arguments: list) -> None:
    """Run pip with progress output; raise with the end of its log if it fails."""
    mark, log = home / "installing", home / "install.log"
    mark.touch()
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "-c", "constraints.txt"]
    with log.open("wb") as sink:
        pip = subprocess.Popen(command + arguments, cwd=str(ROOT), stdout=sink, stderr=sink)
        try:
            code = watch(pip, log)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{tail}\npip failed; its full log is {log.relative_to(ROOT)}")
    mark.unlink()


def watch(pip: subprocess.Popen, log: Path) -> int:
    """Wait for pip and print its latest line: every second on a terminal, else every 15."""
    terminal = sys.stdout.isatty()
    started = time.monotonic()
    while True:
        try:
            code = pip.wait(timeout=1 if terminal else 15)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - started
        status = "done" if code == 0 else latest(log)
        line = f"  {seconds:4.0f} s  {status[:64]}"
        end = "\n" if code is not None or not terminal else "\r"
        print(f"{line:79}" if terminal else line, end=end, flush=True)
        if code is not None:
            return code


def latest(log: Path) -> str:
    """Return the last line of the log that shows progress."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    progress = [line for line in lines if line and not line.startswith(("WARNING", "[notice]"))]
    return progress[-1] if progress else "starting"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninstall: interrupted; run it again to start over", file=sys.stderr)
        sys.exit(130)
