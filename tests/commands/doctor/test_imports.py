"""Packages that cannot be imported, in all the ways in which that happens."""

from pathlib import Path

import pytest

from visattn.commands.doctor.imports import try_imports

MODULES = {
    "well": "",
    "unwell": "raise ImportError('libGL.so.1: cannot open\\nmore')",
    "noisy": "print('visattn-trial is no word of ours')",
    "leaving": "raise SystemExit(0)",
    "deadly": "import os; os.abort()",
    "gone": "import os; os._exit(3)",
    "hanging": "import time; time.sleep(60)",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_each_is_tried_whatever_became_of_the_one_before() -> None:
    trials = try_imports(["unwell", "leaving", "deadly", "noisy", "gone", "well"])
    assert trials.fine == ["noisy", "well"]
    assert trials.failed == {
        "unwell": "ImportError: libGL.so.1: cannot open",
        "leaving": "SystemExit: 0",
        "deadly": "it kills Python (signal 6)",
        "gone": "Python ends with code 3",
    }
    assert trials.facts == {}


def test_one_that_hangs_is_given_up() -> None:
    trials = try_imports(["well", "hanging"], seconds=1)
    assert trials.fine == ["well"]
    assert trials.failed == {"hanging": "it takes over 1 seconds"}


def test_the_working_folder_takes_nobodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    (tmp_path / "json.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    assert try_imports(["json", "well"]).failed == {
        "well": "ModuleNotFoundError: No module named 'well'"
    }
