"""The table of methods: names, what they need, and what fits which model."""

import pytest
from small_subjects import images, small_cnn, token_card

from visattn.attribution.methods import METHODS, fitting, method_of, refusal_of
from visattn.attribution.targets import target_of

BOTTOM_UP = ["itti_koch", "spectral_residual"]
ANY = ["input_gradient", "smoothgrad", "integrated_gradients", "occlusion", "rise", *BOTTOM_UP]
CAMS = ["gradcam", "gradcam++", "layercam"]
ONE_LAYER = ["attention", "gradient_attention"]
THROUGH = ["rollout", "gradient_rollout", "relevance"]


def test_what_fits_follows_from_the_card() -> None:
    assert fitting(small_cnn().card) == [*CAMS, *ANY]
    assert set(fitting(token_card((3, 5), (3, 5)))) == {*ONE_LAYER, *THROUGH, *ANY}
    assert set(fitting(token_card((4, 6), (2, 3)))) == {*ONE_LAYER, *ANY}
    assert set(METHODS) == {*ONE_LAYER, *THROUGH, *CAMS, *ANY}


def test_refusals_say_why() -> None:
    reason = refusal_of(METHODS["rollout"], token_card((4, 6), (2, 3)))
    assert "several grids of tokens (4 x 6, 2 x 3)" in reason
    assert refusal_of(METHODS["attention"], small_cnn().card) == "it has no attention among tokens"


def test_a_misspelt_method_gets_close_matches() -> None:
    with pytest.raises(ValueError, match=r"no method 'rolout'; did you mean .*rollout"):
        method_of("rolout")
    with pytest.raises(ValueError, match="there are attention, rollout"):
        method_of("zzz")


@pytest.mark.parametrize("name", [*CAMS, *ANY])
def test_each_method_gives_one_map_per_image(name: str) -> None:
    subject, x = small_cnn(), images()
    options = {"rise": {"masks": 3}, "smoothgrad": {"samples": 2}}.get(name, {})
    found = METHODS[name].function(subject, x, target_of(None, subject), **options)
    assert found.shape[0] == 2
    assert found.ndim == 3
    assert not found.requires_grad
    assert bool((found < 0).any()) == METHODS[name].signed
    assert set(options) <= set(METHODS[name].options)
