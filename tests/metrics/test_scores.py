"""Caption scores: golden values, the official code that gave them, METEOR and SPICE, warnings."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from visattn.metrics.captions import CaptionScores, caption_scores, score_signature

GOLDEN_FILE = Path(__file__).with_name("golden_captions.json")
PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
ASK = """
import json, sys
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

golden = json.load(sys.stdin)
lines = [*golden["tokens"]]
for entry in golden["sets"].values():
    lines += entry["captions"].values()
    lines += (line for said in entry["references"].values() for line in said)
# A line in lower case follows each, so that no caption depends on the next.
apart = [{"caption": line} for caption in lines for line in (caption, "end")]
tokens = dict(zip(lines, PTBTokenizer().tokenize({0: apart})[0][::2]))
for entry in golden["sets"].values():
    ours = {id: [tokens[caption]] for id, caption in entry["captions"].items()}
    theirs = {id: [tokens[line] for line in lines] for id, lines in entry["references"].items()}
    bleus, bleu_rows = Bleu(4).compute_score(theirs, ours, verbose=0)
    rouge, rouge_row = Rouge().compute_score(theirs, ours)
    cider, cider_row = Cider().compute_score(theirs, ours)
    entry["corpus"] = [float(score) for score in (*bleus, rouge, cider)]
    rows = [*bleu_rows, rouge_row, cider_row]
    entry["per_image"] = {id: [float(row[i]) for row in rows] for i, id in enumerate(ours)}
golden["tokens"] = {line: tokens[line] for line in golden["tokens"]}
json.dump(golden, sys.stdout)
"""


def official(golden: dict[str, Any]) -> dict[str, Any]:
    if not PYTHON.exists():
        pytest.fail("no .venv-peers; make peers installs it")
    completed = subprocess.run(
        [PYTHON, "-c", ASK], input=json.dumps(golden), capture_output=True, text=True, check=True
    )
    return json.loads(completed.stdout)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="the official tokenizer needs Java")
def test_official_code_reproduces_the_golden_values(request: pytest.FixtureRequest) -> None:
    golden = json.loads(GOLDEN_FILE.read_text())
    answered = official(golden)
    if request.config.getoption("--write-golden"):
        text = json.dumps(answered, indent=0, ensure_ascii=False)
        GOLDEN_FILE.write_text(text + "\n", encoding="utf-8")
    assert answered["tokens"] == golden["tokens"]
    for name, expected in golden["sets"].items():
        assert answered["sets"][name]["corpus"] == pytest.approx(expected["corpus"], abs=1e-12)
        for image, row in expected["per_image"].items():
            assert answered["sets"][name]["per_image"][image] == pytest.approx(row, abs=1e-12)


GOLDEN = json.loads(GOLDEN_FILE.read_text())["sets"]
NAMES = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D"]


@pytest.mark.parametrize("name", GOLDEN)
def test_scores_match_the_official_code(name: str) -> None:
    golden = GOLDEN[name]
    scores = caption_scores(golden["captions"], golden["references"])
    assert list(scores.corpus) == NAMES
    assert list(scores.corpus.values()) == pytest.approx(golden["corpus"], abs=1e-12)
    assert list(scores.per_image) == list(golden["captions"])
    turned = dict(reversed(golden["references"].items()))
    assert caption_scores(golden["captions"], turned) == scores  # matched by name
    for image, row in golden["per_image"].items():
        assert list(scores.per_image[image]) == NAMES
        assert list(scores.per_image[image].values()) == pytest.approx(row, abs=1e-12)


def test_end_and_unknown_tokens_are_scored_as_words() -> None:
    # In both captions and references they would raise the scores; they are not removed silently.
    captions = {"a": "a red kite", "b": "two old boats"}
    plain = caption_scores(captions, {"a": ["a kite"], "b": ["boats"]}).corpus
    marked = caption_scores(
        {name: f"{said} <end>" for name, said in captions.items()},
        {"a": ["a kite <end>"], "b": ["boats <end>"]},
    ).corpus
    assert marked["BLEU-1"] > plain["BLEU-1"]


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, ["over one image is 0"]), (2, ["over 2 images"]), (99, ["over 99"]), (100, [])],
)
def test_few_images_raise_a_warning(count: int, said: list[str]) -> None:
    captions = {str(number): f"stone {number}" for number in range(count)}
    warnings = caption_scores(captions, {name: [line] for name, line in captions.items()}).warnings
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))


def test_empty_captions_and_references_are_named() -> None:
    captions = {str(number): "a" for number in range(101)}
    captions |= {"7": "...", "11": "🙂", "13": "", "5": ""}
    scores = caption_scores(
        captions, {name: ["a", "!" if name == "17" else "a"] for name in captions}
    )
    assert scores.warnings == (
        "The captions of 5, 7, 11 and 1 more have no tokens besides punctuation.",
        "Some references of 17 have no tokens besides punctuation.",
    )
    assert scores.per_image["13"]["CIDEr-D"] == 0


@pytest.mark.parametrize(
    ("captions", "references", "said"),
    [
        ({}, {}, "at least one caption"),
        ({}, {"a": ["b"]}, "at least one caption"),
        ({"a": "b", "c": "d"}, {"a": ["b"]}, "but c have none"),
        ({"a": "b"}, {"a": []}, "but a have none"),
        ({"a": "b"}, {"a": ["b"], "c": ["d"], "e": ["f"]}, "but c, e have none"),
    ],
)
def test_captions_and_references_must_have_the_same_images(
    captions: dict[str, str], references: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        caption_scores(captions, references)


def test_the_signature_describes_the_computation() -> None:
    scores = caption_scores({"a": "a kite", "b": "a"}, {"a": ["kite"] * 3, "b": ["a"] * 5})
    start = "tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval"
    assert scores.signature.startswith(f"{start}|refs:all(3-5)|n:2|visattn:")
    assert f"{start}|refs:all(5)|n:1000|" in score_signature(1000, [5] * 1000)
    signature = score_signature(3, iter([2, 7, 5]), java=["meteor:1.5", "spice:1.0"])
    assert signature.startswith(f"{start}|meteor:1.5|spice:1.0|refs:all(2-7)|n:3|visattn:")


def test_java_scores_belong_to_their_images_or_say_why_they_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """METEOR keeps the order of the images, SPICE sorts them."""
    captions = {"b": "A red ring.", "a": "can't"}
    references = {"a": ["Cannot.", "No!"], "b": ["Ring"]}
    results: dict[str, Any] = {"METEOR": (0.5, [0.25, 0.75])}
    results["SPICE"] = (0.5, [{"All": {"f": 0.75}}, {"All": {"f": 0.25}}])

    def compute(name: str, theirs: Mapping[str, list[str]], ours: Mapping[str, list[str]]) -> Any:
        assert ours == {"b": ["a red ring"], "a": ["ca n't"]}
        assert theirs == {"b": ["ring"], "a": ["can not", "no"]}
        if isinstance(results[name], Exception):
            raise results[name]
        return results[name]

    def scored() -> CaptionScores:
        return caption_scores(captions, references, java=True)

    asked = caption_scores(captions, references).not_computed
    assert asked == {"METEOR": "not requested", "SPICE": "not requested"}
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert set(scored().not_computed.values()) == {"Java is not installed"}
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    for name in results:
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{name.lower()}.{name.lower()}", None)
    assert set(scored().not_computed.values()) == {"pycocoevalcap is not installed"}
    monkeypatch.setitem(sys.modules, "pycocoevalcap", ModuleType("pycocoevalcap"))
    for name in results:
        module: Any = ModuleType(name.lower())
        module.__file__ = str(tmp_path / "module.py")
        scorer = type(name, (), {"compute_score": staticmethod(partial(compute, name))})
        setattr(module, name.capitalize(), scorer)
        for path in (
            f"pycocoevalcap.{name.lower()}",
            f"pycocoevalcap.{name.lower()}.{name.lower()}",
        ):
            monkeypatch.setitem(sys.modules, path, module)
    assert scored().not_computed["SPICE"].startswith("no models; pycocoevalcap.spice.get_stanford")
    (tmp_path / "lib").mkdir()
    for jar in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (tmp_path / "lib" / jar).touch()
    scores = scored()
    assert (scores.corpus["METEOR"], scores.corpus["SPICE"], scores.not_computed) == (0.5, 0.5, {})
    for image, value in (("b", 0.25), ("a", 0.75)):
        assert scores.per_image[image]["METEOR"] == scores.per_image[image]["SPICE"] == value
    assert "|df:eval|meteor:1.5|spice:1.0|refs:" in scores.signature
    results["METEOR"] = ValueError("could not convert string to float")
    why = "the Java program failed: could not convert string to float"
    assert scored().not_computed == {"METEOR": why}
