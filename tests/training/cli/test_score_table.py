"""Scores as one table."""

from visattn.training.cli.score_table import score_table

SCORES = {
    "given/pointing": float("nan"),
    "novel/truth": 0.25,
    "test/truth": 1.0,
    "test/phrases": 1234.0,
    "test/error": 0.8375,
}
WIDE = """\
                        test  given   novel
truth                 1.0000         0.2500
phrases                1,234
error     0.8375 (at chance)
pointing                          -"""


def test_rows_are_scores_and_columns_splits() -> None:
    notes = {"test/error_verdict": "at chance", "test/truth_verdict": "above chance"}
    assert score_table(SCORES, notes, width=43) == WIDE


def test_what_does_not_fit_comes_below() -> None:
    text = score_table(SCORES, width=22)
    assert max(map(len, text.splitlines())) <= 22
    assert [table.split()[0] for table in text.split("\n\n")] == ["test", "given", "novel"]
    assert score_table({}) == ""
