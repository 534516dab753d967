"""All scores at once: golden values of the official code, and what is said beside them."""

import json
import os
from pathlib import Path

import pytest

from visattn.metrics.captioning import scores as caption_metrics
from visattn.metrics.captioning.java import JavaScore
from visattn.metrics.captioning.scores import caption_scores

GOLDEN = json.loads(Path(__file__).with_name("golden_captions.json").read_text())["sets"]
NAMES = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D"]
# What the official code gives for the first reference of each dev photo against the other four.
AGREEMENT = [
    0.627512948819188, 0.443429795762641, 0.307081293277960, 0.211600985014929, 0.491734086525372,
    0.803661788730376,
]  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_scores_are_the_official_ones(name: str) -> None:
    told = GOLDEN[name]
    scores = caption_scores(told["captions"], told["references"])
    assert list(scores.corpus) == NAMES
    assert list(scores.corpus.values()) == pytest.approx(told["corpus"], abs=1e-12)
    assert list(scores.per_image) == list(told["captions"])
    for image, row in told["per_image"].items():
        assert list(scores.per_image[image]) == NAMES
        assert list(scores.per_image[image].values()) == pytest.approx(row, abs=1e-12)


def test_the_order_of_references_may_differ_from_that_of_captions() -> None:
    told = GOLDEN["plain"]
    turned = dict(reversed(told["references"].items()))
    straight, other = (
        caption_scores(told["captions"], refs) for refs in (told["references"], turned)
    )
    assert other == straight


def test_end_marks_and_unknown_words_are_words_like_others() -> None:
    # Left in on both sides they would raise the scores; nothing here takes them out in silence.
    captions = {"a": "a red kite", "b": "two old boats"}
    plain = caption_scores(captions, {"a": ["a kite"], "b": ["boats"]}).corpus
    marked = caption_scores(
        {name: f"{said} <end>" for name, said in captions.items()},
        {"a": ["a kite <end>"], "b": ["boats <end>"]},
    ).corpus
    assert marked["BLEU-1"] > plain["BLEU-1"]


def test_the_signature_says_how_it_was_done() -> None:
    scores = caption_scores({"a": "a kite", "b": "a"}, {"a": ["kite"] * 3, "b": ["a"] * 5})
    parts = scores.signature.split("|")
    assert parts[:7] == [
        "tok:ptb-py", "bleu:closest", "rouge:1.2", "cider:D", "df:eval", "refs:all(3-5)", "n:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, ["over one image is 0"]), (2, ["over 2 images"]), (99, ["over 99"]), (100, [])],
)
def test_few_images_are_a_warning(count: int, said: list[str]) -> None:
    captions = {str(number): f"stone {number}" for number in range(count)}
    warnings = caption_scores(captions, {name: [line] for name, line in captions.items()}).warnings
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))


def test_captions_and_references_without_words_are_named() -> None:
    captions = {str(number): "a" for number in range(101)} | {
        "7": "...",
        "11": "🙂",
        "13": "",
        "5": "",
    }
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
def test_captions_and_references_must_be_of_the_same_images(
    captions: dict[str, str], references: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        caption_scores(captions, references)


def test_java_scores_are_not_computed_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caption_metrics, "java_score", None)
    scores = caption_scores({"a": "b"}, {"a": ["b"]})
    assert scores.not_computed == {"METEOR": "not requested", "SPICE": "not requested"}


def test_java_scores_stand_beside_the_others_or_their_reason_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def java_score(
        name: str, captions: dict[str, str], references: dict[str, list[str]]
    ) -> JavaScore | str:
        assert captions == {"a": "red ring", "b": "ca n't"}
        assert references == {"a": ["ring"], "b": ["can not", "no"]}
        return JavaScore(0.25, [0.5, 0.0]) if name == "METEOR" else "no models"

    monkeypatch.setattr(caption_metrics, "java_score", java_score)
    told = {"b": ["Cannot.", "No!"], "a": ["Ring"]}
    scores = caption_scores({"a": "Red ring.", "b": "can't"}, told, java=True)
    assert scores.corpus["METEOR"] == 0.25
    assert [row["METEOR"] for row in scores.per_image.values()] == [0.5, 0.0]
    assert "SPICE" not in scores.corpus
    assert scores.not_computed == {"SPICE": "no models"}
    assert "|df:eval|meteor:1.5|refs:" in scores.signature


@pytest.mark.data
def test_people_agree_on_the_dev_photos_as_the_official_code_says() -> None:
    folder = Path(os.environ["VISATTN_DATA"]) / "flickr8k"
    names = (folder / "Flickr_8k.devImages.txt").read_text().split()
    told: dict[str, list[str]] = {name: [] for name in names}
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition("#")
        if name in told:
            told[name].append(rest.partition("\t")[2])
    firsts = {name: lines[0] for name, lines in told.items()}
    scores = caption_scores(firsts, {name: lines[1:] for name, lines in told.items()})
    assert list(scores.corpus.values()) == pytest.approx(AGREEMENT, abs=1e-12)
