"""Models of runs become files and cards of the package, in half precision."""

from pathlib import Path

import pytest
import torch
from command_sandbox import add_run
from tool_modules import tool_module

import visattn as va
from visattn.models import ShowAttendTell, SmallEncoder, TransformerCaptioner
from visattn.models.captioning.captioner import SPECIAL_TOKENS
from visattn.models.saving import load


def test_a_run_becomes_a_rounded_model_with_a_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "scenes-captioner", tmp_path / "bundled"
    torch.manual_seed(0)
    add_run(run, ShowAttendTell((*SPECIAL_TOKENS, "red"), SmallEncoder((24, 40), channels=8)))
    (run / "config.yaml").write_text("seed_everything: 0\n")
    (run / "test.json").write_text('{"test/caption_accuracy": 0.5}')
    before = load(run / "checkpoints" / "best.ckpt").state_dict()
    main = tool_module("bundle_models").main
    assert main(["round", str(run)]) == 0
    assert main(["bundle", str(run), "--out", str(out)]) == 0
    assert "scenes-captioner.safetensors: 1.2" in capsys.readouterr().out
    after = va.load(out / "scenes-captioner.safetensors").state_dict()
    for name, tensor in before.items():
        assert torch.equal(after[name].float(), tensor.half().float()), name
    card = (out / "scenes-captioner.md").read_text()
    assert "on photos its words mean nothing" in card
    assert '"test/caption_accuracy": 0.5' in card


def test_a_file_that_would_be_too_large_has_some_weights_in_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tool_module("bundle_models")
    monkeypatch.setattr(tool, "LARGEST", 0)
    encoder = SmallEncoder((24, 40), channels=8)
    words = (*SPECIAL_TOKENS, "red")
    model = TransformerCaptioner(words, encoder, embed_dim=12, num_heads=3, num_layers=1)
    rounded = tool.rounded(model.state_dict())
    in_bytes = [name for name, each in rounded.items() if each.itemsize == 1]
    mlp = "decoder.layers.0.mlp"
    assert in_bytes == ["decoder.embedding.weight", f"{mlp}.fc1.weight", f"{mlp}.fc2.weight"]
    tool.bundle(model, "photo-captioner", tmp_path)
    after = load(tmp_path / "photo-captioner.safetensors").state_dict()
    assert all(torch.equal(after[name].float(), each.float()) for name, each in rounded.items())
    assert "license: research and education" in (tmp_path / "photo-captioner.md").read_text()
