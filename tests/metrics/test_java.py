"""METEOR and SPICE through pycocoevalcap, here replaced by a fake package."""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from visattn.metrics.captions import JavaScore, java_score

CAPTIONS = {"b": "a red ring", "a": "two rings"}
REFERENCES = {"b": ["one ring"], "a": ["rings", "two rings"]}
Score = Callable[[Mapping[str, list[str]], Mapping[str, list[str]]], Any]


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, Score], Path]:
    """Replace a score of pycocoevalcap by a function; return the folder of its module."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")

    def play(name: str, score: Score) -> Path:
        low = name.lower()
        module = ModuleType(low)
        module.__file__ = str(tmp_path / f"{low}.py")
        scorer = type(name, (), {"compute_score": staticmethod(score)})
        setattr(module, name.capitalize(), scorer)
        for path in ("pycocoevalcap", f"pycocoevalcap.{low}"):
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{low}.{low}", module)
        return tmp_path

    return play


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert java_score("METEOR", CAPTIONS, REFERENCES) == "Java is not installed"


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/java")
    for name in ("pycocoevalcap", "pycocoevalcap.meteor", "pycocoevalcap.meteor.meteor"):
        monkeypatch.setitem(sys.modules, name, None)
    assert java_score("METEOR", CAPTIONS, REFERENCES) == "pycocoevalcap is not installed"


def test_meteor_receives_lists_and_keeps_their_order(
    plays: Callable[[str, Score], Path],
) -> None:
    def score(references: Mapping[str, list[str]], said: Mapping[str, list[str]]) -> Any:
        assert references == REFERENCES
        assert said == {"b": ["a red ring"], "a": ["two rings"]}
        return 0.5, [0.25, 0.75]

    plays("METEOR", score)
    assert java_score("METEOR", CAPTIONS, REFERENCES) == JavaScore(0.5, [0.25, 0.75])


def test_spice_scores_are_assigned_by_sorted_names(plays: Callable[[str, Score], Path]) -> None:
    folder = plays(
        "SPICE", lambda references, said: (0.5, [{"All": {"f": 0.75}}, {"All": {"f": 0.25}}])
    )
    assert java_score("SPICE", CAPTIONS, REFERENCES) == (
        "no models; pycocoevalcap.spice.get_stanford_models downloads them (385 MB)"
    )
    (folder / "lib").mkdir()
    for jar in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (folder / "lib" / jar).touch()
    assert java_score("SPICE", CAPTIONS, REFERENCES) == JavaScore(0.5, [0.25, 0.75])


def test_failing_program_is_reported(plays: Callable[[str, Score], Path]) -> None:
    def score(references: Mapping[str, list[str]], said: Mapping[str, list[str]]) -> Any:
        raise ValueError("could not convert string to float")

    plays("METEOR", score)
    reason = java_score("METEOR", CAPTIONS, REFERENCES)
    assert reason == "the Java program failed: could not convert string to float"
