"""Words and their maps of every family of vision-language models, on a GPU and on the host."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from vlm_runs import VLMS, options, photo, prompt_of, sharp

from visattn.pipelines.words.captions import caption_with_transformers

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture(params=["highest", "high"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Precision of matrix products; with "high" they may use TensorFloat-32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("family", VLMS)
def test_words_and_maps(family: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "high")
    model, processor = sharp(family)
    captions: dict[str, Any] = {}
    for device in ("cpu", DEVICE):
        try:
            [captions[device]] = caption_with_transformers(
                model.to(device), photo(), processor=processor, prompt=prompt_of(family),
                **options(family),
            )  # fmt: skip
        except ValueError as reason:  # of a release of transformers in which a family is broken
            captions[device] = str(reason)
        finally:
            model.to("cpu")
    ours, host = captions[DEVICE], captions["cpu"]
    if isinstance(host, str):
        assert str(ours)[:60] == host[:60]
        return
    assert not isinstance(ours, str), ours
    if precision == "high" and ours.words != host.words:
        return  # a tie of two words, rounded the other way
    assert ours.words == host.words
    tolerance = 1e-3 if precision == "highest" else 3e-2
    torch.testing.assert_close(ours.maps.values.cpu(), host.maps.values, atol=tolerance, rtol=1e-2)
    assert ours.maps.geometry == host.maps.geometry
