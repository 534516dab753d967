"""Which modules a config may import, and for how long."""

import sys
from argparse import ArgumentError
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from visattn.io.trusted_modules import TRUSTED, named_modules
from visattn.training.cli.import_allowlist import trust_only_known_packages


@pytest.fixture
def friend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that a user has written."""
    (tmp_path / "friendmod.py").write_text("class Friend: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "friendmod"
    sys.modules.pop("friendmod", None)
    monkeypatch.undo()
    trust_only_known_packages()


def accepted(path: str) -> bool:
    """Return whether the parser takes a class by this path."""
    trust_only_known_packages()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=type)
    try:
        parser.parse_args([f"--x={path}"])
    except ArgumentError:
        return False
    return True


def test_what_is_named_is_trusted_and_no_longer_than_it_is_named(
    friend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not accepted("friendmod.Friend")
    assert friend not in sys.modules
    monkeypatch.setenv("VISATTN_TRUST_MODULES", f"elsewhere, {friend}")
    assert accepted("friendmod.Friend")
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "elsewhere")
    assert not accepted("friendmod.Friend")


def test_libraries_of_the_list_are_trusted_and_their_neighbors_are_not() -> None:
    assert accepted("torch.nn.Linear")
    assert accepted("visattn.models.encoder.SmallEncoder")
    for path in (
        "torch.utils.data.DataLoader",
        "subprocess.Popen",
        "visattn.models.serialization.safetensors_file.json.JSONDecoder",  # through one of ours
        "visattn.models.serialization.torch_archives.zipfile.ZipFile",
        "timm.optim.Lion",
        "lightning.fabric.Fabric",
        "torchmetricsevil.X",
    ):
        assert not accepted(path), path
    assert all(part.isidentifier() for name in TRUSTED for part in name.split("."))


@pytest.mark.parametrize("text", ["os;", "a b", "*", "a..b", "/x/y", "a,b-c"])
def test_what_is_no_name_of_a_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="VISATTN_TRUST_MODULES must hold names of modules"):
        named_modules(text)
