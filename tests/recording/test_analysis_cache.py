"""Analyses on disk: read by the next process, and by no other model."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from visattn.attribution.explained_model import analyze_model
from visattn.attribution.methods import METHODS
from visattn.recording.analysis_cache import cache_folder, from_disk, model_digest
from visattn.recording.model_info import ModelInfo

SIZE = (64, 96)
SWIN: dict[str, Any] = {"depths": (1, 2), "num_heads": (1, 2), "embed_dim": 8, "window_size": 4}


def network(name: str = "test_resnet", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, **options).eval()


def swin() -> nn.Module:
    return network("swin_tiny_patch4_window7_224", img_size=SIZE, **SWIN)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache of a test."""
    monkeypatch.setenv("VISATTN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mapped(model: nn.Module, method: str) -> tuple[int, ModelInfo, Tensor]:
    """Return how often a model ran for a map, its metadata and the map."""
    runs: list[int] = []
    image = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    handle = register_module_forward_pre_hook(
        lambda module, args: runs.append(len(args[0])) if module is model else None
    )
    try:
        result = METHODS[method](model, image, 1)
    finally:
        handle.remove()
    return len(runs), analyze_model(model, SIZE).info, result


@pytest.mark.parametrize(
    ("build", "method"), [(network, "gradcam"), (network, "xgradcam"), (swin, "attention")]
)
def test_in_the_next_process_a_model_runs_for_its_map_alone(
    build: Callable[[], nn.Module], method: str, folder: Path
) -> None:
    runs, info, expected = mapped(build(), method)
    again, kept, result = mapped(build(), method)  # another object, as in another process
    assert runs > again == 1
    assert kept == info
    assert torch.equal(result, expected)


def test_models_of_equal_names_and_shapes_have_layers_of_their_own(folder: Path) -> None:
    for stride in (1, 2, 1):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 4, 3, stride, 1), nn.ReLU())
        model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        _, info, result = mapped(model.eval(), "gradcam")
        assert info.feature_layers[-1].grid == (16 // stride, 24 // stride)
        assert result.shape[1:] == (16 // stride, 24 // stride)


def negated(model: Any) -> None:
    model.layer1[0].conv1.weight.data.neg_()


def zeroed(model: Any) -> None:
    model.fc.weight.data.zero_()


def renamed(model: Any) -> None:
    model.layer1.add_module("last", nn.Identity())


def attribute(model: Any) -> None:
    model.global_pool.flatten = nn.Identity()


@pytest.mark.parametrize("change", [negated, zeroed, renamed, attribute])
def test_a_changed_model_has_another_digest(change: Callable[[nn.Module], None]) -> None:
    model = network()
    before = model_digest(model)
    assert before is not None
    assert before == model_digest(network())
    change(model)
    assert model_digest(model) not in (before, None)


@given(
    layout=st.sampled_from(["rows", "columns", "neighbors"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    place=st.integers(0, 300),
    data=st.data(),
)
def test_no_change_of_a_row_a_column_or_of_368_neighbors_goes_unseen(
    layout: str, dtype: torch.dtype, place: int, data: st.DataObject
) -> None:
    width = data.draw(st.sampled_from([17 * 16, 17 * 19, 368, 768]))
    torch.manual_seed(width)
    layer = nn.Linear(width, 391, dtype=dtype)  # too large to be read as a whole
    before = model_digest(layer)
    weight = layer.weight.detach()
    if layout == "rows":
        weight[place] = 0
    elif layout == "columns":
        weight[:, place % width] *= -1
    else:
        weight.view(-1)[place * width : place * width + 368].neg_()
    assert model_digest(layer) not in (before, None)


def test_weights_of_channels_last_have_a_digest_of_their_own() -> None:
    model = network()
    assert model_digest(model.to(memory_format=torch.channels_last)) not in (
        model_digest(network()),
        None,
    )


def own_class(model: Any) -> None:
    class Own(nn.Identity):
        """A module whose code has no version."""

    model.layer1.add_module("own", Own())


def own_method(model: Any) -> None:
    model.forward_head = lambda x: x


def hook(model: Any) -> None:
    model.layer1.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [own_class, own_method, hook])
def test_a_model_with_own_code_is_analyzed_in_each_process(
    change: Callable[[nn.Module], None], folder: Path
) -> None:
    model = network()
    change(model)
    assert model_digest(model) is None


def test_a_patched_method_of_a_library_is_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setattr(type(model), "forward_head", lambda self, x: x)
    assert model_digest(model) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "x", "result": 1}', "other"])
def test_broken_and_foreign_files_are_replaced(content: bytes | str, folder: Path) -> None:
    runs, info, _ = mapped(network(), "gradcam")
    files = sorted(folder.iterdir())
    whole = [file.read_bytes() for file in files]
    for file, following in zip(files, [*whole[1:], whole[0]], strict=True):
        file.write_bytes(following if isinstance(content, str) else content)
    again, kept, _ = mapped(network(), "gradcam")
    assert (again, kept) == (runs, info)
    assert [file.read_bytes() for file in files] == whole


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("variable", ["cache", "off"])
def test_garbage_is_not_collected_meanwhile(
    variable: str, enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISATTN_CACHE", "off" if variable == "off" else str(tmp_path))

    def compute() -> str:
        states.append(gc.isenabled())
        if len(states) == 2:
            raise ValueError("no result")
        return "result"

    states: list[bool] = []
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        from_disk(nn.Linear(2, 2), ("one",), (), compute)
        assert gc.isenabled() == enabled
        with pytest.raises(ValueError, match="no result"):
            from_disk(nn.Linear(2, 2), ("two",), (), compute)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert states == [False, False]


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.write_text("a file")
    assert mapped(network(), "gradcam")[0] > 1


def test_the_folder_is_that_of_the_platform_or_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_folder() is None  # no test writes to the cache of a user
    monkeypatch.setenv("VISATTN_CACHE", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "visattn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not a folder, by the rule of XDG
    assert cache_folder() == Path.home() / ".cache" / "visattn"
