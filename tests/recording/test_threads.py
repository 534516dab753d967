"""One model in several threads gives each its own maps, as of requests to a web service."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import timm
import torch
from random_numbers import photo
from torch import Tensor, nn

import visattn as va
from visattn.blocks import CBAM
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.recording.frozen import frozen
from visattn.results.kinds import SPECIAL_TOKENS

COUNT = 3  # of each kind; 100 were run once by hand
PHOTOS = [photo(40 + 7 * seed, 60, seed) for seed in range(4)]
METHODS = (
    "rollout", "attention", "relevance", "gradcam", "occlusion", "integrated_gradients",
)  # fmt: skip


@pytest.fixture(autouse=True)
def busy_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def vit() -> nn.Module:
    torch.manual_seed(3)
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, img_size=64, depth=2, embed_dim=24, num_heads=2,
        drop_rate=0.5, proj_drop_rate=0.5,
    )  # fmt: skip
    return nn.Sequential(CBAM(3, reduction=1), model)  # in training mode: maps switch it off


def captioner() -> ShowAttendTell:
    torch.manual_seed(3)
    encoder = SmallEncoder((24, 24), channels=8)
    return ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=8)


def explain(model: Any, method: str, index: int) -> Tensor:
    [result] = va.explain(model, PHOTOS[index % 4], method, index % 5, input_size=64)
    return result.values


def record(model: Any, method: str, index: int) -> Tensor:
    x = torch.from_numpy(PHOTOS[index % 4][:40, :40]).movedim(-1, 0)[None] / 255
    x = nn.functional.interpolate(x, (64, 64))
    rows = ["all", "class", (3,)][index % 3]
    with torch.no_grad(), frozen(model), va.record(model, queries=rows) as recording:
        model(x)
    return torch.cat([each.flatten() for each in recording.weights])


def caption(model: Any, method: str, index: int) -> Tensor:
    [result] = va.caption(model, PHOTOS[index % 4], max_length=2, min_length=2, beam_size=2)
    assert result.maps is not None
    return torch.cat([result.maps.values.flatten(), torch.tensor(result.log_probs)])


WORKS: list[tuple[Callable[[], Any], list[tuple[Callable[..., Tensor], str]]]] = [
    (vit, [*((explain, method) for method in METHODS), (record, "record")]),
    (captioner, [(caption, "caption")]),
]


@pytest.mark.parametrize(("build", "works"), WORKS, ids=["maps", "captions"])
def test_results_in_threads_are_those_made_one_by_one(build: Any, works: Any) -> None:
    jobs = [(work, method, index) for index in range(COUNT) for work, method in works]
    alone, shared = build(), build()  # analyzed in the threads for the first time
    before = [module.training for module in shared.modules()]
    right = [work(alone, method, index) for work, method, index in jobs]
    with ThreadPoolExecutor(4) as pool:
        got = pool.map(lambda job: job[0](shared, *job[1:]), jobs)
        for (_, method, _), expected, values in zip(jobs, right, got, strict=True):
            torch.testing.assert_close(values, expected, atol=1e-6, rtol=0, msg=method)
    assert [module.training for module in shared.modules()] == before
    assert all(weight.requires_grad for weight in shared.parameters())
    assert not any(module._forward_hooks for module in shared.modules())


def test_a_model_that_another_thread_runs_is_neither_recorded_nor_changed() -> None:
    model = vit().eval()
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        right = model(x)
    ended = Event()
    outputs: list[Tensor] = []

    def serve() -> None:
        with torch.no_grad():
            while not ended.is_set() or not outputs:
                outputs.append(model(x))

    thread = Thread(target=serve)
    thread.start()
    try:
        with va.record(model, differentiable=True) as recording:
            for _ in range(20):
                model(x)
    finally:
        ended.set()
        thread.join()
    assert len(recording.maps) == 4 * 20
    assert all(torch.equal(output, right) for output in outputs)
