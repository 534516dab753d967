"""Models on the hub: names, upload, download, cache, errors; against a local server."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from command_sandbox import add_run
from huggingface_hub import constants
from local_hub import HubHandler, LocalHub, Repository, StoredFile
from PIL import Image

import visattn as va
from visattn.cli import main
from visattn.models import ModelCard, SmallEncoder
from visattn.models.resnet import AttentionResNet
from visattn.models.saving import stalled_downloads
from visattn.models.saving.hub import HubName, download_file, parse_hub_name

# huggingface_hub 2.4 streams large files with an argument that httpx2 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """A hub without repositories; the token may write, the cache is empty."""
    server = LocalHub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol of its own
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between attempts
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
    huggingface_hub.close_session()


def small_encoder() -> SmallEncoder:
    return SmallEncoder((24, 32), channels=8)


def stop(server: LocalHub) -> None:
    """Refuse connections from now on."""
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()


def test_names_are_parsed() -> None:
    assert parse_hub_name("hf://user/my.name-2_x@feature/1") == ("user/my.name-2_x", "feature/1")
    assert parse_hub_name("hf:directory") is None
    for wrong in ("hf://user", "hf://user/name/file", "hf://user/name@", "hf://user/na me"):
        with pytest.raises(ValueError, match=r"hf://USER/NAME\[@REVISION\], got 'hf://user"):
            va.load(wrong)


def test_a_model_comes_back_from_the_hub_with_its_card(hub: LocalHub) -> None:
    model = small_encoder()
    image = np.full((5, 7, 3), (200, 30, 90), np.uint8)
    card = va.ModelCard("Features of scenes.", {"accuracy": 0.91}, "seed: 3\n", image, "mit")
    va.save(model, "hf://user/encoder", card=card, private=True)
    repository = hub.repositories["user/encoder"]
    files = repository.commits[repository.refs["main"]]
    assert list(files) == ["README.md", "example.png", "model.safetensors"]
    assert (repository.private, repository.messages) == (True, ["Upload SmallEncoder"])
    text = files["README.md"].content.decode()
    for part in (
        "license: mit",
        "pipeline_tag: image-feature-extraction",
        "![example](example.png)",
        'va.load("hf://user/encoder")',
        "images of 24 x 32 pixels",
        "| channels | 8 |",
        "| accuracy | 0.91 |",
        "seed: 3",
    ):
        assert part in text
    assert np.array_equal(va.read_image(files["example.png"].content).pixels, image)
    loaded = va.load("hf://user/encoder")
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
    assert va.load_model("hf://user/encoder").weights == "hf://user/encoder"


def test_a_revision_is_a_branch_or_a_commit(hub: LocalHub) -> None:
    first, second = small_encoder(), small_encoder()
    va.save(first, "hf://user/encoder")
    commit = hub.repositories["user/encoder"].refs["main"]
    va.save(second, "hf://user/encoder@wide")
    key = next(iter(first.state_dict()))
    for name, model in (("", first), (f"@{commit}", first), ("@wide", second)):
        loaded = va.load(f"hf://user/encoder{name}")
        assert torch.equal(loaded.state_dict()[key], model.state_dict()[key])


def test_the_cache_serves_without_network_and_saves_downloads(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    va.save(small_encoder(), "hf://user/encoder")
    for _ in range(2):
        va.load("hf://user/encoder")
    assert sum(request.startswith("GET /objects") for request in hub.requests) == 1
    stop(hub)
    va.load("hf://user/encoder")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    va.load("hf://user/encoder")
    with pytest.raises(ConnectionError, match="hf://user/other is not in the cache, and the hub"):
        va.load("hf://user/other")


def test_a_file_without_its_hash_is_refused_and_deleted(hub: LocalHub, tmp_path: Path) -> None:
    va.save(small_encoder(), "hf://user/encoder")
    hub.corrupt = lambda content: content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(ValueError, match=r"hf://user/encoder is damaged: .* not have the hash"):
        va.load("hf://user/encoder")
    assert not list(tmp_path.rglob("model.safetensors"))
    hub.corrupt = bytes
    va.load("hf://user/encoder")


def test_names_of_a_hostile_hub_are_no_paths(hub: LocalHub, tmp_path: Path) -> None:
    va.save(small_encoder(), "hf://user/encoder")
    keep = tmp_path / ("a" * 40)  # a name like that of a hash
    keep.write_text("mine")
    before = set(tmp_path.rglob("*"))
    for header, value in (
        ("X-Linked-Etag", "../../../../evil.pth"),
        ("X-Linked-Etag", f"{tmp_path}/evil.pth"),
        ("X-Linked-Etag", f"../../../{keep.name}"),
        ("X-Linked-Etag", "abc"),
        ("X-Repo-Commit", "../../../../evil"),
    ):
        hub.headers = {header: f'"{value}"' if "Etag" in header else value}
        with pytest.raises(ValueError, match=r"hf://user/encoder is refused: the hub, or a mirror"):
            va.load("hf://user/encoder")
    hub.repositories["user/empty"] = Repository()
    hub.headers = {"X-Repo-Commit": "../../../../evil"}
    with pytest.raises(ValueError, match="hf://user/empty is refused"):
        va.load("hf://user/empty")
    new = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert not [path for path in new if path.suffix != ".lock"]
    assert keep.read_text() == "mine"
    hub.headers = {}
    va.load("hf://user/encoder")


def test_a_planted_link_deletes_nothing_outside_of_the_cache(hub: LocalHub, tmp_path: Path) -> None:
    va.save(small_encoder(), "hf://user/encoder")
    va.load("hf://user/encoder")
    [link] = tmp_path.rglob("model.safetensors")
    for name, message in (("a" * 40, "does not have the hash aaaaaaaaaaaa"), ("b", "is no hash")):
        mine = tmp_path / name
        mine.write_text("mine")
        link.unlink(missing_ok=True)
        link.symlink_to(mine)
        stop_headers, hub.fail = hub.fail, 500  # the cached copy is used
        with pytest.raises(ValueError, match=message):
            va.load("hf://user/encoder")
        hub.fail = stop_headers
        assert mine.read_text() == "mine"


def test_errors_say_what_to_do(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["user/empty"] = Repository()
    hub.repositories["user/private"] = Repository(private=True)
    hub.repositories["user/gated"] = Repository(gated=True)
    refused: list[tuple[str, type[OSError], str]] = [
        ("user/absent", FileNotFoundError, "there is no repository hf://user/absent, or it is"),
        ("user/empty", FileNotFoundError, "hf://user/empty has no file model.safetensors"),
        ("user/empty@v9", FileNotFoundError, "user/empty has no branch, tag or commit 'v9'"),
    ]
    for name, kind, reason in refused:
        with pytest.raises(kind, match=reason):
            va.load(f"hf://{name}")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(FileNotFoundError, match="private .* set HF_TOKEN"):
        va.load("hf://user/private")
    with pytest.raises(PermissionError, match="gated: accept its terms"):
        va.load("hf://user/gated")
    for token, reason in (("hf_wrong", "status 401, Invalid cred"), ("hf_read", "status 403, you")):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(PermissionError, match=f"{reason}.*a token that may do this"):
            va.save(small_encoder(), "hf://user/new")
    hub.fail = 500
    with pytest.raises(OSError, match="the hub failed at hf://user/new .status 500, maintenance"):
        va.save(small_encoder(), "hf://user/new")
    stop(hub)
    with pytest.raises(ConnectionError, match="the connection to the hub failed at hf://user/new"):
        va.save(small_encoder(), "hf://user/new")


def test_answers_of_something_else_are_reported_as_such(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["user/net"] = Repository()
    for status, reason in ((404, "404 Not Found"), (500, "500 Internal Server Error")):
        hub.fail = status
        with pytest.raises(ConnectionError, match=f"hub failed .*{reason}.*: try later"):
            va.load("hf://user/net")
    hub.fail = 0
    page = {"Content-Type": "text/html"}
    monkeypatch.setattr(HubHandler, "resolve", lambda self, *_: self.answer(b"<html>", 200, page))
    with pytest.raises(ConnectionError, match="the hub failed .*missing the 'X-Repo-Commit'"):
        va.load("hf://user/net")
    moved = {"Location": "http://[::1", "X-Repo-Commit": "a" * 40, "ETag": f'"{"b" * 40}"'}
    monkeypatch.setattr(HubHandler, "resolve", lambda self, *_: self.answer(b"", 302, moved))
    with pytest.raises(ConnectionError, match=r"answers what cannot be read \(Invalid IPv6 URL"):
        va.load("hf://user/net")


@pytest.mark.parametrize("phase", ["HEAD .*/resolve/", "GET .*/resolve/", "GET /objects/"])
def test_a_server_that_hardly_sends_anything_is_left(
    phase: str, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large = phase == "GET /objects/"
    hub.repositories["user/net"] = Repository()
    files = {"a.bin": StoredFile(b"x" * 1_500, large=large)}
    hub.repositories["user/net"].commit("main", files)
    monkeypatch.setattr(stalled_downloads, "PATIENCE_SECONDS", 0.4)
    hub.slow, start = phase, time.monotonic()  # of 50 bytes per second
    with pytest.raises(ConnectionError, match=r"hf://user/net .* sent less than 64 kB in 60 s"):
        download_file(HubName("user/net", None), "a.bin")
    assert time.monotonic() - start < 20  # of 30 s for the file alone
    assert [each.name for each in threading.enumerate() if each.name == "hub download"] == []
    places = (tmp_path / "cache" / "models--user--net").rglob("*")
    assert {path.name for path in places if path.is_file()} <= {"main"}  # name of the commit
    hub.slow = ""
    assert download_file(HubName("user/net", None), "a.bin").stat().st_size == 1_500


def test_a_slow_server_that_makes_progress_is_waited_for(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["user/net"] = Repository()
    hub.repositories["user/net"].commit("main", {"a.bin": StoredFile(b"x" * 600, large=True)})
    monkeypatch.setattr(stalled_downloads, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("visattn.models.saving.hub.CHUNK_BYTES", 100)
    hub.slow, hub.piece, hub.pause, start = "GET /objects/", 100, 0.25, time.monotonic()
    assert download_file(HubName("user/net", None), "a.bin").stat().st_size == 600
    assert time.monotonic() - start > 1.2


def test_a_file_that_is_no_visattn_model_is_refused(hub: LocalHub) -> None:
    hub.repositories["user/other"] = repository = Repository()
    repository.commit("main", {"model.safetensors": StoredFile(b"not tensors", large=True)})
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        va.load("hf://user/other")


def test_a_run_is_exported_to_the_hub_and_used_from_there(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "1"
    add_run(run, AttentionResNet(("cat", "dog"), img_size=(32, 32), depth=8, stem_width=4))
    (run / "config.yaml").write_text("seed_everything: 7\n")
    (run / "test.json").write_text('{"test/accuracy": 0.875}')
    assert main(["export", "--run", str(run), "--out", "hf://user/pets"]) == 0
    assert capsys.readouterr().out.startswith("hf://user/pets\tAttentionResNet")
    files = hub.repositories["user/pets"].commits[hub.repositories["user/pets"].refs["main"]]
    text = files["README.md"].content.decode()
    assert "| test/accuracy | 0.875 |" in text
    assert "seed_everything: 7" in text
    assert va.load_model("hf://user/pets").class_names == ("cat", "dog")
    Image.new("RGB", (40, 30)).save(tmp_path / "photo.png")
    assert main(["caption", str(tmp_path / "photo.png"), "--weights", "hf://user/pets"]) == 1
    assert "hf://user/pets holds a AttentionResNet, which is not" in capsys.readouterr().err


def test_the_card_of_a_run_needs_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run at"):
        ModelCard.from_run(tmp_path / "absent")
