"""Errors that users read: what is wrong, not what a parser tried."""

from pathlib import Path

import pytest

from visattn.cli import main
from visattn.training.cli.errors import plain_error

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--data.colors", "[mauve]"], 1, "visattn: colors must be chosen from red"),
        (["--model.start", "nowhere.ckpt"], 1, "visattn: no checkpoint at nowhere.ckpt; `visattn"),
        (["--trainer.devices", "0"], 1, "visattn: trainer.devices must be auto, or a number"),
        (["--model", "ClassificationTask"], 2, "the following arguments are required: classifier"),
    ],
)
def test_a_mistake_in_an_experiment_is_a_few_lines(
    words: list[str], code: int, said: str, tiny: Path, capsys: Capsys
) -> None:
    assert main(["fit", "--config", str(tiny), *words]) == code
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("INFO")]
    assert said in "\n".join(told)
    assert len(told) <= 5
    assert "Namespace" not in "\n".join(told)
    assert not Path("runs").exists()


def test_what_was_given_is_repeated_if_it_is_short() -> None:
    told = """\
Parser key "trainer.precision":
  Does not validate against any of the Union subtypes
  Subtypes: [typing.Literal[16], <class 'NoneType'>]
  Errors:
    - Expected a typing.Literal[16]
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: 7"""
    assert plain_error(told) == (
        'Parser key "trainer.precision":\n  Expected a typing.Literal[16]\n  Given value: 7'
    )
    assert plain_error(told.replace(": 7", f": {'7' * 99}")).endswith("[16]")


def test_a_file_that_is_no_config_is_not_read_out() -> None:
    told = plain_error("Unexpected config: root:x:0:0\nme:x:1:1\n")
    assert told == "a config is a mapping of names to values; this one begins with 'root:x:0:0'"


def test_other_errors_stay_as_they_are() -> None:
    assert plain_error("one line\n  and another") == "one line\n  and another"
