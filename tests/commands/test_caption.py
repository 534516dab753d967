"""`visattn caption` with captioners of visattn."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image

import visattn as va
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.results.records import from_dict
from visattn.viz import text

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def weights(sandbox: Path) -> str:
    """An untrained captioner."""
    return str(sandbox / "captioner.safetensors")


def caption(photos: Path, weights: str, out: Path, *words: object) -> int:
    line = ["caption", photos, "--model", weights, "--out", out, *words]
    return main([*map(str, line)])


def test_two_models_share_a_page(weights: str, photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = TransformerCaptioner(
        (*SPECIAL_TOKENS, "dog"), SmallEncoder((32, 32), channels=12), embed_dim=8, num_heads=2
    )
    va.save(other, tmp_path / "other.safetensors")
    out, models = tmp_path / "out", [weights, str(tmp_path / "other.safetensors")]
    words = "--model", models[1], "--figures", "svg"
    assert caption(photos / "tall.png", weights, out, *words) == 0
    record = json.loads((out / "tall.json").read_text())
    assert (record["model"], record["others"][0]["model"]) == tuple(models)
    texts = [record["caption"], record["others"][0]["caption"]]
    rows = list(csv.DictReader((out / "caption.csv").read_text().splitlines()))
    assert [(row["model"], row["caption"]) for row in rows] == list(zip(models, texts, strict=True))
    arrays = np.load(out / "tall.npz")
    assert arrays["maps"].shape[1:] != arrays["model2.maps"].shape[1:]
    assert {path.name for path in out.glob("*.svg")} == {"tall.svg", "tall.2.svg"}
    page = (out / "tall.html").read_text()
    assert all(name in page for name in models)


def test_a_folder_yields_rows_pages_arrays_and_scores(
    weights: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "out"
    assert caption(photos, weights, out, "--figures", "svg") == 0
    printed = capsys.readouterr()
    rows = dict(line.split("\t") for line in printed.out.splitlines())
    assert set(rows) == {"tall", "wide", "deeper/dot"}
    assert f"open in a browser: {out / 'index.html'}" in printed.err
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    written = {f"{name}.{kind}" for name in rows for kind in ("html", "svg", "json", "npz")}
    assert files == {*written, "index.html", "caption.csv"}
    cards = parse_index_page((out / "index.html").read_text())
    assert {card.page: card.caption for card in cards} == {f"{n}.html": s for n, s in rows.items()}
    for name, said in rows.items():
        assert json.loads((out / f"{name}.json").read_text())["caption"] == said
        page = (out / f"{name}.html").read_text()
        assert f'lang="" dir="auto">{said}</h1>' in page
        assert f'dir="auto">{weights}</p>' in page  # the model as it was named
    assert all(word in (out / "wide.svg").read_text() for word in rows["wide"].split())
    references, scores = tmp_path / "references.txt", tmp_path / "scores.json"
    references.write_text("".join(f"{name}.png#0\t{said}\n" for name, said in rows.items()))
    assert main(["score", "captions", str(out), str(references), "--out", str(scores)]) == 0
    assert json.loads(scores.read_text())["scores"]["ROUGE-L"] == pytest.approx(1)


def test_saved_values_match_the_library(weights: str, photos: Path, tmp_path: Path) -> None:
    for words, width in (((), 5), (("--beam-size", 1), 1)):
        assert caption(photos / "wide.png", weights, tmp_path, *words) == 0
        record = json.loads((tmp_path / "wide.json").read_text())
        [known] = va.caption(va.load(weights), photos / "wide.png", beam_size=width)
        assert record["words"] == list(known.words)
        for key in ("log_probs", "gates", "score"):
            assert record[key] == pytest.approx(getattr(known, key))
        assert record["finished"] is known.finished
        torch.testing.assert_close(torch.tensor(record["maps"]["values"]), known.maps.values)
        assert from_dict(va.Geometry, record["maps"]["geometry"]) == known.maps.geometry
        maps = np.load(tmp_path / "wide.npz")["maps"]
        np.testing.assert_allclose(maps.sum((1, 2)), 1, atol=1e-5)
    regions = {}
    for fit in ("crop", "squash", "pad"):
        assert caption(photos / "tall.png", weights, tmp_path / fit, "--resize-mode", fit) == 0
        geometry = json.loads((tmp_path / fit / "tall.json").read_text())["maps"]["geometry"]
        assert geometry["image_size"] == [59, 29]
        regions[fit] = geometry["region"]
    assert regions["squash"] == regions["pad"] == [0, 0, 29, 59]
    left, top, right, bottom = regions["crop"]
    assert (left, right) == (0, 29)
    assert 10 < top < bottom < 49


def test_other_captions_stand_beside_the_best(weights: str, photos: Path, tmp_path: Path) -> None:
    assert caption(photos / "wide.png", weights, tmp_path, "--num-captions", 3) == 0
    record = json.loads((tmp_path / "wide.json").read_text())
    every = [record, *record["alternatives"]]
    assert len({" ".join(each["words"]) for each in every}) == len(every) == 3
    with np.load(tmp_path / "wide.npz", allow_pickle=False) as arrays:
        for each, end in zip(every, ("", "_2", "_3"), strict=True):
            np.testing.assert_allclose(arrays[f"maps{end}"], each["maps"]["values"])


def test_phrase_boxes_are_shown_and_scored(weights: str, photos: Path, tmp_path: Path) -> None:
    assert caption(photos, weights, tmp_path / "plain") == 0
    record = json.loads((tmp_path / "plain" / "wide.json").read_text())
    phrase = {"first_word": 0, "words": 1, "types": [], "boxes": [[0, 0, 1, 0.5]]}
    known = {"wide.png": [{"sentence": f"{record['words'][0]} thing", "phrases": [phrase]}]}
    (tmp_path / "boxes.json").write_text(json.dumps(known))
    out = tmp_path / "out"
    assert caption(photos, weights, out, "--phrase-boxes", tmp_path / "boxes.json", "--boxes") == 0
    record = json.loads((out / "wide.json").read_text())
    scored, *_ = record["phrases"]
    assert (scored["words"], scored["first"], scored["boxes"]) == (1, 0, [[0.0, 0.0, 1.0, 0.5]])
    top, middle, _ = np.array(record["maps"]["values"][0]).sum(axis=1).tolist()
    assert scored["correctness"] == [pytest.approx(top + middle / 2, abs=1e-4)]
    assert '"boxes":[[0.0,0.0,1.0,0.5]]' in (out / "wide.html").read_text()
    assert json.loads((out / "tall.json").read_text())["phrases"] == []
    assert record["boxes"]["boxes"]


def test_layers_and_heads_of_a_transformer_captioner(photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    words = (*SPECIAL_TOKENS, "red", "green")
    encoder = SmallEncoder((24, 40), channels=12)
    model = TransformerCaptioner(words, encoder, embed_dim=12, num_layers=2, num_heads=3)
    file, photo, maps = tmp_path / "t.safetensors", photos / "tall.png", {}
    va.save(model, file)
    for number, choice in enumerate(((), ("--layers", 0), ("--layers", 0, "--heads", 1))):
        assert caption(photo, str(file), tmp_path / str(number), *choice) == 0
        maps[number] = np.load(tmp_path / str(number) / "tall.npz")["maps"]
    [expected] = va.caption(model.eval(), photo, layers=[0], heads=[1])
    np.testing.assert_allclose(maps[2], expected.maps.values, rtol=1e-4, atol=1e-6)
    assert not np.allclose(maps[0], maps[1])
    assert not np.allclose(maps[1], maps[2])


def test_letters_that_figures_lack_are_reported(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = text._fonts()[:1]
    monkeypatch.setattr(text, "_fonts", lambda: ours)
    text._family_with.cache_clear()
    torch.manual_seed(0)
    model = ShowAttendTell((*SPECIAL_TOKENS, *"狗犬"), SmallEncoder((16, 24), channels=8))
    va.save(model, tmp_path / "m.safetensors")
    Image.new("RGB", (24, 16), "red").save(tmp_path / "a.png")
    words = (str(tmp_path / "m.safetensors"), tmp_path / "out", "--figures", "png")
    assert caption(tmp_path / "a.png", *words) == 0
    message = r"boxes for \d characters that no installed font has, such as [狗犬]"
    assert re.search(message, capsys.readouterr().err)
    text._family_with.cache_clear()
