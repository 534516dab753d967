"""The recurrent attention model: parts, rollouts, gradients, options and errors."""

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.glimpse_model import GlimpseRollout
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.glimpses.retina import (
    GlimpseNet,
    GlimpseRNN,
    RNNType,
    crop_glimpses,
    glimpse_boxes,
    glimpse_pyramid,
)

SMALL = {"hidden_size": 11, "what_dim": 7, "where_dim": 5}


def model(
    size: tuple[int, int] = (13, 17), channels: int = 1, classes: int = 3, **options: Any
) -> RecurrentAttentionModel:
    torch.manual_seed(0)
    names = [f"kind {number}" for number in range(classes)]
    means = [0.2, 0.5, 0.6][:channels]
    made = RecurrentAttentionModel(
        names,
        size,
        means,
        [0.3] * channels,
        **{"num_glimpses": 4, "glimpse_size": 5, **SMALL, **options},
    )
    nn.init.normal_(made.policy.mean.weight, std=0.5)  # so that its locations differ
    return made.eval()


def photos(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9))


def starts(count: int) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(8)) * 2 - 1


# ---- the size of the paper's network


@pytest.mark.parametrize(
    ("size", "glimpse", "scales", "seeing"),
    [(28, 8, 1, 74_752), (60, 12, 3, 121_856), (100, 12, 4, 140_288)],
)
def test_parameter_counts_match_the_paper(
    size: int, glimpse: int, scales: int, seeing: int
) -> None:
    made = RecurrentAttentionModel(
        "0123456789", (size, size), [0.1], [0.3], glimpse_size=glimpse, num_scales=scales
    )
    parts = (made.glimpse_net, made.rnn, made.policy.mean, made.classifier)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in parts]
    assert counts == [seeing, 131_584, 514, 2_570]
    baseline = sum(parameter.numel() for parameter in nn.Linear(256, 1).parameters())
    assert baseline == 257
    whole = {28: 209_677, 60: 256_781, 100: 275_213}[size]
    assert sum(counts) + baseline == whole
    # The extra parameters are the initial location and the standard deviation, if learned.
    ours = {name: parameter.numel() for name, parameter in made.named_parameters()}
    extra = {"policy.init_mean": 2, "policy.log_std": 1}
    assert sum(ours.values()) == whole - baseline + sum(extra.values())
    assert {name: ours[name] for name in extra} == extra
    assert not made.policy.init_mean.requires_grad
    assert not made.policy.log_std.requires_grad


# ---- parts


def test_glimpse_net_matches_its_equations() -> None:
    torch.manual_seed(1)
    net = GlimpseNet(6, 3, what_dim=96, where_dim=160, out_dim=31)
    patches, places = drawn(5, 2, 3, 3, 3), drawn(5, 2)
    patch_layer, place = net.glimpse_encoder[1], net.location_encoder
    assert isinstance(patch_layer, nn.Linear)
    what = (patches.reshape(5, 54) @ patch_layer.weight.T + patch_layer.bias).clamp(min=0)
    where = (places @ place.weight.T + place.bias).clamp(min=0)
    both = what @ net.what_proj.weight.T + net.what_proj.bias
    both = (both + where @ net.where_proj.weight.T + net.where_proj.bias).clamp(min=0)
    torch.testing.assert_close(net(patches, places), both)


def test_glimpse_net_detaches_locations() -> None:
    places = drawn(5, 2).requires_grad_()
    GlimpseNet(1, 3)(drawn(5, 1, 1, 3, 3), places).sum().backward()
    assert places.grad is None


def test_dropout_drops_the_glimpse_in_training_only() -> None:
    torch.manual_seed(1)
    net, inputs = GlimpseNet(1, 3, dropout=0.5), (drawn(5, 1, 1, 3, 3), drawn(5, 2))
    net.eval()
    assert torch.equal(net(*inputs), net(*inputs))
    net.train()
    assert not torch.equal(net(*inputs), net(*inputs))


@pytest.mark.parametrize("glimpse", [1, 2, 5, 8])
def test_convolutional_encoder_accepts_any_glimpse_size(glimpse: int) -> None:
    net = GlimpseNet(6, glimpse, encoder_type="conv", what_dim=7, out_dim=11)
    assert net(drawn(3, 2, 3, glimpse, glimpse), drawn(3, 2)).shape == (3, 11)


@pytest.mark.parametrize("core", ["rnn", "lstm", "gru"])
def test_rnn_matches_torch_cells(core: RNNType) -> None:
    torch.manual_seed(1)
    memory, inputs = GlimpseRNN(core, 5, 7), drawn(3, 5)
    nothing = memory.initial_state(3, inputs)
    assert all(not part.any() and part.shape == (3, 7) for part in nothing)
    cell: Any = memory.cell
    actual, again = memory(inputs, nothing), None
    expected = cell(inputs)  # torch's cells begin with nothing too
    assert torch.equal(actual[0], expected[0] if core == "lstm" else expected)
    again = memory(inputs, actual)
    assert torch.equal(
        again[0], cell(inputs, actual)[0] if core == "lstm" else cell(inputs, actual[0])
    )
    assert not torch.equal(again[0], actual[0])


def test_plain_rnn_matches_the_paper_and_starts_as_identity() -> None:
    memory = GlimpseRNN("rnn", 5, 7)
    cell = memory.cell
    assert torch.equal(cell.weight_hh, 0.9 * torch.eye(7))
    inputs, before = drawn(3, 5), drawn(3, 7)
    wanted = inputs @ cell.weight_ih.T + cell.bias_ih + before @ cell.weight_hh.T + cell.bias_hh
    torch.testing.assert_close(memory(inputs, (before,))[0], wanted.clamp(min=0))


# ---- the path


def fed(made: RecurrentAttentionModel, call: Any) -> tuple[GlimpseRollout, Tensor, Tensor]:
    """The result of `call`, and all glimpses and locations that the network received: [r t ...]."""
    kept: list[tuple[Tensor, Tensor]] = []
    hook = made.glimpse_net.register_forward_pre_hook(lambda _, inputs: kept.append(inputs))
    rollouts = call()
    hook.remove()
    glimpses, places = zip(*kept, strict=True)
    return rollouts, torch.stack(glimpses, 1), torch.stack(places, 1)


@pytest.mark.parametrize("start", ["random", "center", "learned"])
@pytest.mark.parametrize("backend", ["crop", "bilinear"])
def test_returned_locations_are_those_of_the_glimpses(start: str, backend: str) -> None:
    made = model(channels=3, num_scales=2, init_location=start, backend=backend, policy_std=0.8)
    images = photos(3, 3, 13, 17)
    torch.manual_seed(3)
    rollouts, glimpses, places = fed(
        made, lambda: made.scanpath(images, num_rollouts=2, sample=True)
    )
    assert torch.equal(rollouts.locations.flatten(0, 1), places)
    assert rollouts.locations.shape == (3, 2, 4, 2)
    if backend == "crop":  # cut out again, by the functions alone
        shown = made.normalize(images)
        pyramid = glimpse_pyramid(
            shown, num_scales=2, pad_value=-torch.tensor([0.2, 0.5, 0.6]) / 0.3
        )
        which = torch.arange(3).repeat_interleave(8)
        again = crop_glimpses(pyramid, places.flatten(0, 1), glimpse_size=5, image_indices=which)
        assert torch.equal(again, glimpses.flatten(0, 1))
    for rollout in range(2):
        patches = made.patches(images, rollouts.locations[:, rollout])
        pixels = glimpses.unflatten(0, (3, 2))[:, rollout] * made.scale + made.shift
        assert torch.equal(patches, pixels.round().clamp(0, 255).to(torch.uint8))


def test_evaluation_uses_policy_means() -> None:
    made = model(init_location="center")
    images = photos(5, 1, 13, 17)
    rollouts = made.scanpath(images)
    assert torch.equal(rollouts.policy_samples, rollouts.policy_means)
    assert torch.equal(made(images), rollouts.logits[:, 0, -1])
    assert torch.equal(made(images), made(images))
    assert rollouts.locations[:, 0, 1:].std(0).min() > 0  # locations differ between images


def test_fixed_locations_bypass_the_policy() -> None:
    made = model()
    images, path = photos(3, 1, 13, 17), starts(18).view(3, 6, 2)
    nn.init.constant_(made.policy.mean.bias, float("nan"))
    rollouts = made.scanpath(images, locations=path, num_rollouts=2)
    assert torch.equal(rollouts.locations, path[:, None].expand(-1, 2, -1, -1))
    assert rollouts.policy_means.shape == rollouts.policy_samples.shape == (3, 2, 0, 2)
    assert rollouts.logits.shape == (3, 2, 6, 3)


@pytest.mark.parametrize("start", ["random", "center", "learned"])
def test_fixed_initial_location_is_no_action(start: str) -> None:
    made, first = model(init_location=start), starts(3)
    rollouts = made.scanpath(
        photos(3, 1, 13, 17), init_locations=first, num_rollouts=2, sample=True
    )
    assert torch.equal(rollouts.locations[:, :, 0], first[:, None].expand(-1, 2, -1))
    assert rollouts.policy_means.shape[2] == 3
    assert torch.equal(rollouts.locations[:, :, 1:], rollouts.policy_samples.clamp(-1, 1))


def test_fixed_start_and_noise_are_deterministic() -> None:
    made, state = model(), torch.get_rng_state()
    made.rollout(
        made.normalize(photos(3, 1, 13, 17)), init_locations=starts(3), noise=drawn(3, 1, 4, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_rollouts_accept_their_own_initial_locations() -> None:
    made, first = model(), starts(6).view(3, 2, 2)
    rollouts = roll(made, photos(3, 1, 13, 17), first, drawn(3, 2, 4, 2))
    assert torch.equal(rollouts.locations[:, :, 0], first)
    alike = roll(made, photos(3, 1, 13, 17), first[:, 1], drawn(3, 2, 4, 2))
    torch.testing.assert_close(alike.logits[:, 1], rollouts.logits[:, 1])


@pytest.mark.parametrize("core", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("sight", ["linear", "conv"])
def test_every_rnn_and_glimpse_encoder_runs(core: str, sight: str) -> None:
    made = model(rnn_type=core, glimpse_encoder=sight, num_scales=3, channels=3)
    rollouts = made.scanpath(photos(2, 3, 13, 17), num_rollouts=3, sample=True)
    assert rollouts.logits.isfinite().all()
    rollouts.logits.sum().backward()
    for part in (made.glimpse_net, made.rnn, made.classifier):
        assert all(parameter.grad is not None for parameter in part.parameters())


# ---- images and rollouts are independent


def roll(
    made: RecurrentAttentionModel, images: Tensor, start: Tensor, noise: Tensor
) -> GlimpseRollout:
    shown = made.normalize(images)
    return made.rollout(shown, num_rollouts=noise.shape[1], init_locations=start, noise=noise)


def test_outputs_follow_the_order_of_images() -> None:
    made, order = model(), torch.tensor([3, 0, 4, 1, 2])
    images, first, noise = photos(5, 1, 13, 17), starts(5), drawn(5, 2, 4, 2)
    rollouts = roll(made, images, first, noise)
    other = roll(made, images[order], first[order], noise[order])
    for name in ("locations", "logits", "policy_states", "policy_means", "policy_samples"):
        torch.testing.assert_close(getattr(other, name), getattr(rollouts, name)[order])


@pytest.mark.parametrize("training", [False, True])
def test_single_image_is_a_batch(training: bool) -> None:
    made = model(dropout=0.3).train(training)
    assert made(photos(1, 1, 13, 17)).shape == (1, 3)
    made.scanpath(photos(1, 1, 13, 17), sample=True).logits.sum().backward()


# ---- any image


def test_images_of_any_shape() -> None:
    made = model(
        (40, 56), channels=3, classes=7, glimpse_size=8, num_scales=2, what_dim=96, where_dim=160
    )
    assert made(photos(2, 3, 40, 56)).shape == (2, 7)
    far = made.boxes(torch.tensor([1.0, -1.0]))
    assert far.tolist() == [[52, -4, 60, 4], [48, -8, 64, 8]]
    places = starts(6).view(2, 3, 2)
    wanted = glimpse_boxes(places, (40, 56), glimpse_size=8, num_scales=2)
    assert torch.equal(made.boxes(places), wanted)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (3, 2)])
def test_glimpses_larger_than_the_image(size: tuple[int, int]) -> None:
    made = model(size, glimpse_size=8, num_scales=3)
    assert made(photos(2, 1, *size)).isfinite().all()


def test_single_pixel_image_appears_at_its_offset() -> None:
    made = model((1, 1), glimpse_size=2, pad_value=0.0)
    places = torch.tensor([[[-1.0, -1.0], [1.0, 1.0]]])
    patches = made.patches(torch.full((1, 1, 1, 1), 200, dtype=torch.uint8), places)
    assert patches[0, 0, 0, 0].tolist() == [[0, 0], [0, 200]]
    assert patches[0, 1, 0, 0].tolist() == [[200, 0], [0, 0]]


@pytest.mark.parametrize(("background", "byte"), [(0.0, 0), (0.4, 102), (1.0, 255)])
def test_padding_has_the_background_value(background: float, byte: int) -> None:
    made = model(channels=3, pad_value=background)
    corner = made.patches(photos(1, 3, 13, 17), -torch.ones(1, 1, 2))
    assert (corner[..., :2, :2] == byte).all()
    flat = torch.full((1, 3, 13, 17), byte, dtype=torch.uint8)
    assert (made.patches(flat, starts(9)[None]) == byte).all()


def test_gray_model_accepts_rgb_and_refuses_other_shapes() -> None:
    made = model(init_location="center")
    gray = photos(2, 1, 13, 17)
    torch.testing.assert_close(made(gray.expand(-1, 3, -1, -1)), made(gray), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"images must be \[batch, 1, 13, 17\], got \[2, 1, 17"):
        made.scanpath(photos(2, 1, 17, 13))
    with pytest.raises(ValueError, match=r"images must be \[batch, 3, 13, 17\]"):
        model(channels=3)(gray)


# ---- errors


@pytest.mark.parametrize(
    "options",
    [
        {"glimpse_size": 0},
        {"num_scales": 0},
        {"num_glimpses": 0},
        {"hidden_size": 0},
        {"policy_std": 0.0},
        {"policy_std": float("nan")},
        {"dropout": 1.0},
    ],
    ids=str,
)
def test_invalid_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="be at least 1, policy_std above 0 and dropout in"):
        model(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"rnn_type": "LSTM"},
        {"init_location": "middle"},
        {"glimpse_encoder": "cnn"},
        {"backend": "grid"},
    ],
    ids=str,
)
def test_unknown_options_are_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # without shape checks
    with pytest.raises(ValueError, match="must be one of .*, got"):
        model(**options)


@pytest.mark.parametrize("part", ["glimpse_net", "rnn", "policy"])
def test_nonfinite_weights_are_refused(part: str) -> None:
    made = model()
    nn.init.constant_(next(getattr(made, part).parameters()), float("nan"))
    if part == "policy":
        nn.init.constant_(made.policy.mean.bias, float("nan"))
    with pytest.raises(ValueError, match="the weights hold NaN or infinity"):
        made(photos(2, 1, 13, 17))


@pytest.mark.parametrize(
    "arguments",
    [
        {"locations": torch.full((2, 3, 2), 1.01)},
        {"locations": torch.full((2, 3, 2), float("nan"))},
        {"locations": torch.zeros(2, 0, 2)},
        {"init_locations": torch.full((2, 2), -1.5)},
        {"init_locations": torch.zeros(3, 2)},
    ],
    ids=["beyond", "no number", "nowhere", "start beyond", "one too many"],
)
def test_locations_outside_the_image_are_refused(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"locations must be x and y in \[-1, 1\], with at least"):
        model().scanpath(photos(2, 1, 13, 17), **arguments)
    if "locations" in arguments:
        with pytest.raises(ValueError, match="locations must be x and y"):
            model().patches(photos(2, 1, 13, 17), arguments["locations"])


def test_zero_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match="num_rollouts must be at least 1, got 0"):
        model().scanpath(photos(2, 1, 13, 17), num_rollouts=0)


# ---- as a file
