"""The subject of all maps: a model that was analyzed, with what its runs told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.geometry.affine import Margin
from visattn.recording.cell_strides import CellStrides
from visattn.recording.feature_pooling import (
    PooledFeatures,
    followed_layer,
    pooled_features,
    pooled_maps,
)
from visattn.recording.frozen import first_weight, frozen, without_grad
from visattn.recording.interception import probing
from visattn.recording.model_info import FeatureLayer, ModelInfo
from visattn.recording.outputs import class_scores, output_tensors
from visattn.recording.places import Grid, probe_images
from visattn.recording.probe import ProbeResult, probe_model
from visattn.recording.score_trace import ScoreTracer


@dataclass(frozen=True, eq=False)
class Subject:
    """A model as methods take it: analyzed once, for images of one size.

    What its runs tell is measured when it is first asked for, and kept as long as the subject. A
    model whose weights or modules change is another subject.

    Args:
        model: The model, whose modules are hooked.
        info: Its metadata.
        forward: Function from normalized images to the output of the model.
        class_names: Names of the classes; () if unknown.
        measures: What was measured, by kind and size of the images.
    """

    model: nn.Module
    info: ModelInfo
    forward: Callable[[Float[Tensor, "b c y x"]], Any]
    class_names: tuple[str, ...] = ()
    measures: dict[Any, Any] = field(default_factory=dict)

    def scores(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        """Return the class scores (logits) of normalized images.

        Raises:
            ValueError: If the output of the model has no class scores.
        """
        if self.info.output.error:
            raise ValueError(f"{self.info.name} has no class to explain: {self.info.output.error}")
        return class_scores(self.forward(images), len(images), self.info.output)

    @property
    def probe(self) -> ProbeResult:
        """Where the activations of the model lie on its images."""
        size, channels = self.info.input_size, len(self.info.mean)
        return self.once("probe", lambda: probe_model(self.model, size, channels, self.forward))

    def layers_of(self, site: str) -> list[FeatureLayer | None]:
        """Return how the output of each call of a module lies on the image; None if it does not."""
        probe, image = self.probe, self.probe_image()
        layers = probe.layers_of(site)
        if layers != [None] or probe.cut:
            return layers
        follow = lambda: followed_layer(self.tracer(), image, probe, site)  # noqa: E731
        return [self.once(("followed", site), follow)]

    def pooled(self, num_classes: int | None = None) -> PooledFeatures:
        """Return the features that the scores are pooled from, and the attention that they read.

        Args:
            num_classes: Number of classes, if it decides which of several outputs the scores are.
        """
        return self.once(("pooled", num_classes), lambda: self._pooled(num_classes))

    def margin(self, grid: Grid) -> Margin:
        """Return what of the images is free of the cells of a map.

        Example:
            >>> info = ModelInfo("net", "other", (28, 32), (0.5,) * 3, (0.5,) * 3, "none")
            >>> model = nn.Conv2d(3, 2, 5)
            >>> Subject(model, info, model).margin((24, 28))
            (2, 2)
        """
        return self.strides.margin(grid, self.info.input_size)

    @property
    def strides(self) -> CellStrides:
        """Pixels from one cell to the next in the maps of the model."""
        return self.once("strides", lambda: self.probe.strides)

    @property
    def independent(self) -> bool:
        """Whether images in a batch do not affect each other, as by statistics of the batch."""
        return self.once("independent", self._compare_alone)

    def _compare_alone(self) -> bool:
        photo = self.probe_image()
        with without_grad(self.model), probing():
            try:
                alone = self.forward(photo)
                among = self.forward(torch.cat([photo, 1 - 2 * photo.flip(-1)]))
            except (RuntimeError, ValueError, TypeError):  # a model that takes one image
                return True
        pairs = zip(output_tensors(alone), output_tensors(among), strict=False)
        pairs = [(own.float(), both[:1].float()) for own, both in pairs if both.shape[:1] == (2,)]
        limit = 1e-3 if photo.dtype in (torch.float32, torch.float64) else 5e-2
        return all(bool(((own - one).abs() <= limit * own.abs().max()).all()) for own, one in pairs)

    def once(self, kind: Any, measure: Callable[[], Any]) -> Any:
        """Return what was measured for images of this size; it is measured once."""
        key = (kind, self.info.input_size, len(self.info.mean))
        if key not in self.measures:
            self.measures[key] = measure()
        return self.measures[key]

    def probe_image(self) -> Float[Tensor, "1 c y x"]:
        """Return an image like a photo, on which the model is measured."""
        like = first_weight(self.model)
        return probe_images(len(self.info.mean), self.info.input_size, like)[:1]

    def tracer(self, num_classes: int | None = None) -> ScoreTracer:
        """Return what runs the model with gradients."""
        return ScoreTracer(self.model, self.forward, num_classes)

    def _pooled(self, num_classes: int | None) -> PooledFeatures:
        tracer, image = self.tracer(num_classes), self.probe_image()
        with frozen(self.model), probing():
            try:
                kept = tracer.kept(image)
                self.once("strides", lambda: kept.strides)
                pooled = pooled_maps(tracer, image, kept, self.info.input_size)
                return pooled or pooled_features(tracer, image, kept, self.probe)
            except Exception as error:
                probe = self.probe
                not_differentiable = isinstance(error, RuntimeError | NotImplementedError)
                if not (probe.error or not_differentiable):
                    raise
                why = probe.cut or f"its scores are not differentiable ({error})"
                return PooledFeatures(error=why, probe=probe)
