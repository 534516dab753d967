"""Story: the commands, files and names of the README exist."""

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_block_is_run_or_marked() -> None:
    unmarked = {language for language, mark, _ in BLOCKS if "data" not in mark}
    assert unmarked == {"python"}  # tests/docs/test_site.py runs them


def test_snippets_are_short() -> None:
    lengths = [len(text.splitlines()) for language, _, text in BLOCKS if language == "python"]
    assert max(lengths) <= 8


def test_the_readme_is_short() -> None:
    assert len(TEXT.split()) <= 700


def test_commands_and_configs_exist() -> None:
    from visattn.cli import COMMANDS
    from visattn.training.command import list_configs

    commands = "\n".join(text for *_, text in BLOCKS)
    words = re.findall(r"^visattn (\w+)", commands, re.MULTILINE)
    assert words
    assert set(words) <= set(COMMANDS)
    assert set(re.findall(r"--config (\w+)", commands)) <= set(list_configs())


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"\]\((?!https?:)([^)]+)\)|`(visattn/[\w/.]+)`", TEXT)
    paths = [first or second for first, second in named]
    assert len(paths) >= 10
    assert [path for path in paths if not (README.parent / path).exists()] == []


def test_tables_name_every_block_method_and_model() -> None:
    import visattn.models
    from visattn import list_blocks
    from visattn.attribution import METHODS

    words = set(re.findall(r"`([\w+]+)`", TEXT))
    assert [name for name in (*list_blocks(), *METHODS) if name not in words] == []
    models = {word for word in words if word[0].isupper()}
    assert [name for name in models if not hasattr(visattn.models, name)] == []
