"""The service of the guide answers photos in threads, and refuses what is none."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from random_numbers import photo, png

import visattn as va

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "in_a_service.md"


def test_the_guide_answers_each_request_with_the_map_of_its_photo() -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    [code] = re.findall(
        r"^```python service\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    service: dict[str, object] = {}
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    try:
        exec(code.replace(", pretrained=True", ""), service)
    finally:
        torch.set_num_threads(threads)
    explainer = service["explainer"]
    assert isinstance(explainer, va.Explainer)
    photos = [png(photo(80 + seed, 60, seed)) for seed in range(6)]
    with client_of(service["app"]) as client, ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda each: client.post("/map", content=each), photos)]
        for sent, answer in zip(photos, answers, strict=True):
            assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
            [heatmap] = explainer.explain(sent, "gradcam")
            with Image.open(io.BytesIO(answer.content)) as drawn:
                assert np.array_equal(np.asarray(drawn), np.asarray(va.overlay(sent, heatmap)))
        for url, body, status in (
            ("/map", b"no photo", 415),
            ("/map", photos[0][:200], 415),
            ("/map", bytes(11 * 2**20), 413),
            ("/map?method=rollout", photos[0], 422),
        ):
            assert client.post(url, content=body).status_code == status
