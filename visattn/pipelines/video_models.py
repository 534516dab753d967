"""Video classifiers of transformers and torchvision: a map per frame, with tubelets in time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode
from visattn.io.messages import did_you_mean
from visattn.models.backbones.pretrained import LoadedModel
from visattn.pipelines.inputs import PreparedImages, prepare_images, transform_images
from visattn.recording.frozen import eval_mode
from visattn.recording.model_config import takes_clips
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.info import MapInfo

VIDEO_METHODS = ("gradcam", "attention", "input_gradient")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_KINETICS = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
_HALVES = ((0.5,) * 3, (0.5,) * 3)
_MVIT = ((0.45,) * 3, (0.225,) * 3)
_DEFAULT_FRAMES = 16

Volume = Float[Tensor, "t y x c"]
"""Features of a clip: tubelets in time, rows, columns and channels."""


@dataclass(frozen=True)
class _Family:
    """Where the features of a kind of video model lie.

    Args:
        module: Returns the module whose features Grad-CAM explains.
        volume: Places its features; gets the model, the features of one clip, and the other
            positional arguments of the module.
        colors: Mean and standard deviation, if the model is not loaded with its preprocessing.
        of_input: Whether these are the input of the module: where a class token is read out, the
            gradient of other tokens after the last layer is zero.
        channels_first: Whether a clip is `[c, t, y, x]`.
    """

    module: Callable[[Any], nn.Module]
    volume: Callable[[Any, Tensor, Sequence[Any]], Volume]
    colors: tuple[tuple[float, ...], tuple[float, ...]]
    of_input: bool = True
    channels_first: bool = False


def _grid_features(_: Any, features: Tensor, __: Sequence[Any]) -> Volume:
    return features.permute(1, 2, 3, 0)


def _time_major(model: Any, tokens: Tensor, _: Sequence[Any]) -> Volume:
    """Return tokens of tubelets, frame after frame; tokens before them are left out."""
    config = model.config
    size = config.tubelet_size
    depth = size if isinstance(size, int) else size[0]
    side = config.patch_size if isinstance(size, int) else size[1]
    count = config.num_frames // depth
    cells = config.image_size // side
    return tokens[-count * cells * cells :].unflatten(0, (count, cells, cells))


def _patch_major(model: Any, tokens: Tensor, _: Sequence[Any]) -> Volume:
    """Return tokens of all frames, patch after patch, without the class token."""
    cells = model.config.image_size // model.config.patch_size
    frames = model.config.num_frames
    return tokens[1:].unflatten(0, (cells, cells, frames)).permute(2, 0, 1, 3)


_FAMILIES: dict[str, _Family] = {
    "VideoMAEForVideoClassification": _Family(
        lambda model: model.videomae.encoder.layer[-1], _time_major, _IMAGENET
    ),
    "VivitForVideoClassification": _Family(
        lambda model: model.vivit.layers[-1], _time_major, _HALVES
    ),
    "TimesformerForVideoClassification": _Family(
        lambda model: model.timesformer.encoder.layer[-1], _patch_major, _MVIT
    ),
    "MViT": _Family(
        lambda model: model.blocks[-1],
        # Its blocks get the tokens, and how many there are in time, rows and columns.
        lambda _, tokens, rest: tokens[1:].unflatten(0, tuple(rest[0])),
        _MVIT,
        channels_first=True,
    ),
    "SwinTransformer3d": _Family(
        lambda model: model.features,
        lambda _, features, __: features,
        _IMAGENET,
        of_input=False,
        channels_first=True,
    ),
    **{
        name: _Family(module, _grid_features, _KINETICS, of_input=False, channels_first=True)
        for name, module in {
            "VideoResNet": lambda model: model.layer4,
            "S3D": lambda model: model.features,
        }.items()
    },
}


class VideoExplainer:
    """Explains a video classifier: a map for each frame of a clip.

    Supported are VideoMAE, ViViT and TimeSformer of transformers, and the video models of
    torchvision (3D ResNets, S3D, MViT, Video Swin). A token of several frames (a tubelet) gives
    its map to each of them.

    `gradcam` explains the features before the readout, `input_gradient` the pixels, and `attention`
    is that of the last layer, mean over its heads: what all tokens attend to (VideoMAE), what the
    class token attends to (ViViT), and for TimeSformer, within each frame, what its class token
    attends to.

    Args:
        model: The model, or a result of `load_model`, whose preprocessing and class names are used.
        num_frames: Frames per clip, for models that take any number; by default 16.
        img_size: Height and width of the input; by default that of the model.
        class_names: Names of the classes.
        resize_mode: `crop`, `squash` or `pad`, in place of the preprocessing of the model.

    Raises:
        ValueError: If the model is no supported video classifier, or the number of frames differs
            from that of the model.

    Example:
        >>> import numpy as np
        >>> from torchvision.models.video import r3d_18
        >>> explainer = VideoExplainer(r3d_18(num_classes=3), num_frames=4, img_size=(32, 32))
        >>> clip = explainer.prepare([np.full((40, 60, 3), 9 * i, np.uint8) for i in range(4)])
        >>> maps = explainer.map(clip, "input_gradient", 2)
        >>> len(maps), maps[3].info.more["tubelet"], maps[3].geometry.image_size
        (4, 3, (40, 60))
    """

    def __init__(
        self,
        model: nn.Module | LoadedModel,
        *,
        num_frames: int | None = None,
        img_size: tuple[int, int] | None = None,
        class_names: Sequence[str] = (),
        resize_mode: ResizeMode | None = None,
    ) -> None:
        loaded = model if isinstance(model, LoadedModel) else LoadedModel(model, None, (), "")
        self.model = loaded.model
        name = type(loaded.model).__name__
        if not takes_clips(self.model) or name not in _FAMILIES:
            raise ValueError(
                f"the model must be one of {', '.join(_FAMILIES)}, got {name}; for a model of "
                "images use visattn.pipelines.Explainer, for another video model compute the maps "
                "yourself and place them with AttentionMap.from_array"
            )
        self._family = _FAMILIES[name]
        self.class_names = tuple(class_names or loaded.class_names)
        self.clip_length = _clip_length(self.model, num_frames)
        self.resize_mode: ResizeMode | None = resize_mode
        self.transform = None if resize_mode or img_size else loaded.transform
        self._explained = _explained(self.model, self._family, img_size)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that fit the model."""
        has_attention = hasattr(self.model, "set_attn_implementation")
        return tuple(name for name in VIDEO_METHODS if name != "attention" or has_attention)

    def prepare(self, frames: Iterable[ImageLike]) -> PreparedImages:
        """Return the frames of a clip as inputs; missing ones repeat the last.

        Raises:
            ValueError: If there are no frames, or more than a clip has.
        """
        listed = list(frames)
        if not 1 <= len(listed) <= self.clip_length:
            raise ValueError(f"a clip has 1 to {self.clip_length} frames, got {len(listed)}")
        if self.transform is not None:
            return transform_images(self.model, listed, self.transform)
        return prepare_images(self._explained, listed, resize_mode=self.resize_mode)

    def map(
        self,
        clip: PreparedImages,
        method: str,
        target: int | str | None = None,
    ) -> list[AttentionMap]:
        """Return the map of each frame.

        Args:
            clip: Result of `prepare`.
            method: `gradcam`, `attention` or `input_gradient`.
            target: Class to explain, by index or name; None for the predicted class of the clip.

        Raises:
            ValueError: If the method does not fit the model, or the class does not exist.
        """
        if method not in self.methods:
            raise ValueError(
                f"{method} does not fit the video model {type(self.model).__name__}; supported "
                f"methods: {', '.join(self.methods)}"
            )
        count = len(clip.inputs)
        # A video may end within a clip: its last frame fills the clip, and gets one map.
        inputs = clip.inputs[torch.arange(self.clip_length).clamp(max=count - 1)]
        inputs = inputs.transpose(0, 1) if self._family.channels_first else inputs
        compute = {"gradcam": self._gradcam, "attention": self._attention}
        with eval_mode(self.model):
            scores, volume = compute.get(method, self._gradient)(inputs[None], target)
        index = self._class_index(scores, target)
        named = self.class_names[index] if index < len(self.class_names) else ""
        info = MapInfo(
            method=method,
            model=type(self.model).__name__,
            target=index,
            class_name=named or str(index),
            probability=float(scores.softmax(0)[index]),
            written=("signed",),
        )
        maps: list[AttentionMap] = []
        for frame in range(count):
            tubelet = frame * len(volume) // self.clip_length
            reason = empty_map_reason(volume[tubelet])
            of_frame = replace(info, empty=reason, more={"tubelet": tubelet})
            kind = "tokens" if method == "attention" else "gradient"
            geometry = clip.geometries[frame]
            maps.append(AttentionMap(volume[tubelet], method, kind, geometry, of_frame))
        return maps

    def features(
        self, inputs: Float[Tensor, "1 _ _ y x"]
    ) -> tuple[Tensor, Tensor, Callable[[Tensor], Volume]]:
        """Return class scores, the features that Grad-CAM explains, and what places them.

        Args:
            inputs: A clip as the model takes it.
        """
        leaf = torch.empty(0)
        rest = ()

        def of_input(_: nn.Module, args: Any, kwargs: Any) -> Any:
            nonlocal leaf, rest
            values = args[0] if args else kwargs["hidden_states"]
            leaf = values.detach().requires_grad_()
            rest = args[1:]
            return ((leaf, *rest), kwargs) if args else (args, {**kwargs, "hidden_states": leaf})

        def of_output(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            nonlocal leaf
            leaf = output.detach().requires_grad_()
            return leaf

        module = self._family.module(self.model)
        handle = (
            module.register_forward_pre_hook(of_input, with_kwargs=True)
            if self._family.of_input
            else module.register_forward_hook(of_output)
        )
        try:
            with torch.enable_grad():
                scores = _logits(self.model(inputs))[0]
        finally:
            handle.remove()
        return scores, leaf, lambda values: self._family.volume(self.model, values[0], rest)

    def _gradcam(self, inputs: Tensor, target: int | str | None) -> tuple[Tensor, Tensor]:
        scores, leaf, place = self.features(inputs)
        [gradient] = torch.autograd.grad(scores[self._class_index(scores, target)], leaf)
        weights = place(gradient).mean((0, 1, 2))
        return scores.detach(), (place(leaf.detach()) * weights).sum(-1).relu()

    def _gradient(self, inputs: Tensor, target: int | str | None) -> tuple[Tensor, Tensor]:
        leaf = inputs.detach().requires_grad_()
        with torch.enable_grad():
            scores = _logits(self.model(leaf))[0]
            [gradient] = torch.autograd.grad(scores[self._class_index(scores, target)], leaf)
        return scores.detach(), gradient[0].abs().amax(0 if self._family.channels_first else 1)

    @torch.no_grad()
    def _attention(self, inputs: Tensor, _: int | str | None) -> tuple[Tensor, Tensor]:
        model = cast("Any", self.model)
        kernel = model.config._attn_implementation  # noqa: SLF001 (transformers has no getter)
        model.set_attn_implementation("eager")  # the others return no weights
        try:
            output = model(inputs, output_attentions=True)
        finally:
            model.set_attn_implementation(kernel)
        weights = output.attentions[-1].mean(1)  # [b, n, m]; of TimeSformer a batch of frames
        scores = output.logits[0]
        if len(weights) > 1:
            cells = model.config.image_size // model.config.patch_size
            return scores, weights[:, 0, 1:].unflatten(1, (cells, cells))
        reads_all = getattr(model.config, "use_mean_pooling", False)
        row = weights[0].mean(0) if reads_all else weights[0, 0]
        return scores, self._family.volume(model, row[:, None], ())[..., 0]

    def _class_index(self, scores: Tensor, target: int | str | None) -> int:
        if target is None:
            return int(scores.argmax())
        if isinstance(target, str):
            if target not in self.class_names:
                hint = did_you_mean(target, self.class_names, otherwise="pass an index")
                raise ValueError(f"there is no class {target!r}; {hint}")
            return self.class_names.index(target)
        if not 0 <= target < len(scores):
            raise ValueError(f"class indices are 0 to {len(scores) - 1}, got {target}")
        return target


def _logits(output: Any) -> Float[Tensor, "b k"]:
    return output if isinstance(output, Tensor) else output.logits


def _clip_length(model: nn.Module, num_frames: int | None) -> int:
    """Return the number of frames of a clip; some models take one number only."""
    own = getattr(getattr(model, "config", None), "num_frames", None)
    if type(model).__name__ == "MViT":
        own = 2 * cast("Any", model).pos_encoding.temporal_size  # the stride of its stem
    if own is not None and num_frames not in (None, own):
        raise ValueError(
            f"this {type(model).__name__} takes {own} frames per clip, got num_frames={num_frames}"
        )
    count = own or num_frames or _DEFAULT_FRAMES
    if count < 1:
        raise ValueError(f"num_frames must be at least 1, got {num_frames}")
    return int(count)


def _explained(
    model: nn.Module, family: _Family, img_size: tuple[int, int] | None
) -> ExplainedModel:
    """Return the metadata that preprocessing needs."""
    config = getattr(model, "config", None)
    side = getattr(config, "image_size", 112 if type(model).__name__ == "VideoResNet" else 224)
    if config is not None and getattr(config, "attention_type", "") == "space_only":
        raise ValueError(
            "a TimeSformer with attention_type 'space_only' keeps no order of frames in its "
            "tokens; use one with divided_space_time or joint_space_time"
        )
    library = "torchvision" if config is None else "transformers"
    size = img_size or (side, side)
    info = ModelInfo(type(model).__name__, library, size, *family.colors, "none")
    return ExplainedModel(model, info, lambda images: _logits(model(images)))
