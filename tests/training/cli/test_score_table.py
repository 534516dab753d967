"""Text tables of scores."""

from visattn.training.cli.checks import score_table

SCORES = {
    "teacher_forced/pointing_game": float("nan"),
    "novel/caption_accuracy": 0.25,
    "test/caption_accuracy": 1.0,
    "test/num_phrases": 1234.0,
    "test/error": 0.8375,
}
WIDE = """\
                                test  teacher_forced   novel
caption_accuracy              1.0000                  0.2500
num_phrases                    1,234
error             0.8375 (at chance)
pointing_game                                      -"""


def test_rows_are_scores_and_columns_are_splits() -> None:
    notes = {"test/error_verdict": "at chance", "test/caption_accuracy_verdict": "above chance"}
    assert score_table(SCORES, notes, width=60) == WIDE


def test_columns_beyond_the_width_continue_in_a_second_table() -> None:
    text = score_table(SCORES, width=39)
    assert max(map(len, text.splitlines())) <= 39
    assert [table.split()[0] for table in text.split("\n\n")] == ["test", "teacher_forced", "novel"]
    assert score_table({}) == ""
