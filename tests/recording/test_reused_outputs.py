"""Outputs of vision towers are reused for the same photo only."""

from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from tests.helpers.vlm_runs import options, photo, prompt_of, replays, sharp
from visattn.pipelines.words.replay import generate_and_replay
from visattn.recording.word_rows import ReusedOutputs

TOWERS = {"ved": "encoder", "llava": "model.vision_tower", "qwen2_vl": "model.visual",
          "blip": "vision_model", "pix2struct": "encoder"}  # fmt: skip


class Tower(nn.Module):
    """A tower that counts its runs."""

    main_input_name = "pixel_values"
    runs = 0

    def forward(self, pixel_values: Tensor, *, scale: float | None = None) -> tuple[Tensor, ...]:
        self.runs += 1
        return pixel_values * (scale or 1.0), pixel_values + 1


@pytest.fixture
def kept() -> ReusedOutputs:
    model = nn.Sequential(Tower())
    reused = ReusedOutputs(model)
    with reused.collecting():
        model(torch.arange(6.0).view(3, 2))
    return reused


@pytest.mark.parametrize(
    ("pixels", "kwargs", "runs"),
    [
        (torch.arange(6.0).view(3, 2), {}, 1),
        (torch.tensor([[2.0, 3.0]]), {}, 1),
        (torch.tensor([[2.0, 4.0]]), {}, 2),
        (torch.tensor([[1.0, 2.0]]), {}, 2),
        (torch.tensor([[2.0, 3.0]]).double(), {}, 2),
        (torch.tensor([[2.0, 3.0]]), {"scale": 2.0}, 2),
        (torch.tensor([[2.0, 3.0]]), {"scale": None}, 1),
    ],
)
def test_only_equal_calls_are_reused(
    kept: ReusedOutputs, pixels: Tensor, kwargs: dict[str, Any], runs: int
) -> None:
    tower: Any = kept.towers["0"]
    with kept.reusing():
        output = tower(pixels, **kwargs)
    assert tower.runs == runs
    assert torch.equal(output[0], pixels * (kwargs.get("scale") or 1.0))
    assert torch.equal(output[1], pixels + 1)
    assert "forward" not in vars(tower)


def test_changed_outputs_do_not_change_what_is_kept(kept: ReusedOutputs) -> None:
    tower, pixels = kept.towers["0"], torch.arange(6.0).view(3, 2)
    with kept.reusing():
        tower(pixels)[0].zero_()
        assert torch.equal(tower(pixels)[0], pixels)


def test_recorded_modules_run(kept: ReusedOutputs) -> None:
    with kept.reusing(except_sites=["0.attention"]):
        kept.towers["0"](torch.tensor([[2.0, 3.0]]))
    assert kept.towers["0"].runs == 2


@pytest.mark.parametrize("family", TOWERS)
def test_the_tower_runs_once_for_a_caption(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replays(family)  # places of image tokens are cached
    tower = sharp(family)[0].get_submodule(TOWERS[family])
    count = 0
    forward = type(tower).forward

    @wraps(forward)  # outputs are kept by names of arguments
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return forward(*args, **kwargs)

    bound: Any = counted
    monkeypatch.setattr(tower, "forward", bound.__get__(tower))
    [replay] = replays(family)
    assert count == 1
    monkeypatch.undo()
    monkeypatch.setattr(ReusedOutputs, "_keep", lambda *_: lambda *_: None)
    [again] = replays(family)
    torch.testing.assert_close(replay.rows, again.rows, atol=2e-6, rtol=0)


def test_each_photo_of_a_batch_keeps_its_own_output() -> None:
    model, processor = sharp("ved")
    photos = [photo(seed=seed) for seed in (1, 2)]
    common: dict[str, Any] = {"processor": processor, "prompt": prompt_of("ved"), **options("ved")}
    together = generate_and_replay(model, photos, batch_size=2, **common)
    for image, [replay] in zip(photos, together, strict=True):
        [[alone]] = generate_and_replay(model, image, **common)
        torch.testing.assert_close(replay.rows, alone.rows, atol=2e-6, rtol=0)
