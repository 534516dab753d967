"""The Vision Transformer, with any attention, positions, stem and pool by name."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad as padded
from torch.utils.checkpoint import checkpoint

from visattn.blocks.transformer.drop import PatchDropout
from visattn.blocks.transformer.layer import EncoderLayer
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.positions.sincos import Rule, sine_positions
from visattn.models.classifier import Part
from visattn.models.vit.exchange import ExchangeableClassifier
from visattn.models.vit.parts import (
    Forward,
    Pool,
    Positions,
    Stem,
    attention_kinds,
    both,
    check_positions,
    encoder_layers,
    learned_places,
    pool_layer,
    prefix_roles,
    stem_layer,
    token_rotations,
    whole_size,
)


class VisionTransformer(ExchangeableClassifier):
    """A transformer over the patches of an image.

    Images may be of any size that patches fill: learnt positions are resampled, others computed.
    What layers attend to is seen by `visattn.record`, whose maps know which tokens stand before the
    patches. Weights are named as in timm where the parts are the same.

    Args:
        classes: Names of the classes, in the order of the scores.
        size: Height and width, in pixels, of the images it is made for; others may come too.
        patch: Side of a patch in pixels, or its height and width.
        stem: What makes tokens: a linear map of each `patch`; a stack of small convolutions
            (`conv`); of the patch and four `shifted` ones; or `overlapping` convolutions as in
            compact transformers, which know no patch.
        stem_options: What the stem takes besides, such as `layers` of overlapping ones.
        width: Of a token.
        depth: Layers.
        heads: Of each layer; they divide the width.
        ratio: How much wider than a token the hidden layer of a feed-forward layer is.
        feed_forward: Two maps with a GELU between them (`mlp`), or gated (`swiglu`).
        attend: The kind of attention, `full`, `window`, `shifted`, `neighborhood` or `linear`; or
            several, which the layers take in turns.
        extent: Side of a window or a neighborhood in patches, or its height and width.
        positions: `learned`, `sine` (both added to tokens), `rotary` (turns queries and keys),
            `relative` (a learnt bias per offset, head and layer) or `none`.
        prefix_positions: Whether learnt positions have places for the tokens before the patches.
        resample: How learnt positions are resampled for other sizes: as in `timm`, `plain` as in
            Hugging Face's ViT, or as in `dino`.
        pool: What the head sees: the `class` token, the `mean` of the patches, or their mean under
            learnt weights (`attention`, `sequence`).
        class_token: Whether there is one; None if the pool reads it.
        distilled: Whether there is a distillation token too, with a head of its own; the scores are
            the mean of both heads.
        registers: Tokens more, 0 to 8, that nobody reads.
        norm_after: Whether the last norm follows the pool instead of going before; None for after
            the mean only.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_norm: Whether queries and keys are normalized.
        locality: Whether heads learn their temperature and no token attends to itself.
        layer_scale: What the learnt scales of all branches begin with; None for no scales.
        drop_path: How likely the last layer is left out in training; the first never is.
        patch_drop: Share of the patches that are left out in training.
        pad: Whether to fill images up to whole patches, at the bottom and on the right, with the
            mean color; if not, others are refused.
        checkpointing: Whether to compute layers again for their gradients and keep less in memory.
        epsilon: Added to variances in the norms.
        mean: Mean of each color channel, in [0, 1]; one for gray images.
        std: Spread of each color channel, in [0, 1].

    Raises:
        ValueError: If an option is unknown or does not fit the others.

    Example:
        >>> model = VisionTransformer(("cat", "dog"), size=(32, 32), patch=8, width=32, depth=2,
        ...     heads=2, registers=4)
        >>> model(torch.zeros(1, 3, 40, 24, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929; Touvron et al. 2020, arXiv:2012.12877
        (distilled); Darcet et al. 2023, arXiv:2309.16588 (registers).
    """

    UNDECAYED = ("cls_token", "dist_token", "reg_token", "pos_embed")

    def __init__(
        self,
        classes: Sequence[str],
        *,
        size: tuple[int, int] = (224, 224),
        patch: int | tuple[int, int] = 16,
        stem: Stem = "patch",
        stem_options: Mapping[str, Any] | None = None,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        ratio: float = 4.0,
        feed_forward: Forward = "mlp",
        attend: str | Sequence[str] = "full",
        extent: int | tuple[int, int] = 7,
        positions: Positions = "learned",
        prefix_positions: bool = True,
        resample: Rule = "timm",
        pool: Pool = "class",
        class_token: bool | None = None,
        distilled: bool = False,
        registers: int = 0,
        norm_after: bool | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        locality: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        patch_drop: float = 0.0,
        pad: bool = False,
        checkpointing: bool = False,
        epsilon: float = 1e-6,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(classes, size, mean, std)
        self.patch, self.extent = both(patch, "patch"), both(extent, "extent")
        self.stem: Stem = stem
        self.stem_options = dict(stem_options or {})
        self.width, self.depth, self.heads, self.ratio = width, depth, heads, ratio
        self.feed_forward: Forward = feed_forward
        self.attend, self.prefix_positions = attend, prefix_positions
        self.positions: Positions = positions
        self.resample: Rule = resample
        self.pool: Pool = pool
        self.distilled, self.registers = distilled, registers
        self.qkv_bias, self.qk_norm, self.locality = qkv_bias, qk_norm, locality
        self.layer_scale, self.drop_path, self.patch_drop = layer_scale, drop_path, patch_drop
        self.pad, self.checkpointing, self.epsilon = pad, checkpointing, epsilon
        self.norm_after = pool == "mean" if norm_after is None else norm_after
        self.roles = prefix_roles(pool, class_token, distilled=distilled, registers=registers)
        self.class_token = "class" in self.roles
        self._build(attention_kinds(attend, depth))
        self._start()

    def _build(self, kinds: Sequence[str]) -> None:
        """Make the parts."""
        width, epsilon, hidden = self.width, self.epsilon, round(self.width * self.ratio)
        check_positions(self.positions, kinds, self.patch_drop)
        self.patch_embed = stem_layer(
            self.stem, len(self.mean), width, patch=self.patch, options=self.stem_options
        )
        self.grid = self.patch_embed.grid(self._whole(*self.size))
        self.cls_token, self.dist_token, self.reg_token = (
            nn.Parameter(torch.zeros(1, count, width)) if count else None
            for count in map(self.roles.count, ("class", "distillation", "register"))
        )
        count = self.grid[0] * self.grid[1] + len(self.roles) * self.prefix_positions
        learned = self.positions == "learned"
        self.pos_embed = nn.Parameter(torch.zeros(1, count, width)) if learned else None
        self.patch_dropout = PatchDropout(self.patch_drop)
        self.blocks = encoder_layers(
            kinds,
            width,
            hidden=hidden,
            grid=self.grid,
            extent=self.extent,
            relative=self.positions == "relative",
            feed_forward=self.feed_forward,
            drop_path=self.drop_path,
            layer_scale=self.layer_scale,
            epsilon=epsilon,
            heads=self.heads,
            bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            locality=self.locality,
        )
        norms = nn.Identity(), nn.LayerNorm(width, epsilon)
        self.norm, self.fc_norm = norms if self.norm_after else norms[::-1]
        self.attn_pool = pool_layer(
            self.pool, width, heads=self.heads, hidden=hidden, epsilon=epsilon
        )
        self._modules["head"] = nn.Linear(width, len(self.classes))  # `head` is a property
        self.head_dist = nn.Linear(width, len(self.classes)) if self.distilled else None

    def _start(self) -> None:
        """Give weights their first values, as timm does."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias) if module.bias is not None else None
        for tokens, spread in (
            (self.cls_token, 1e-6),
            (self.reg_token, 1e-6),
            (self.dist_token, 0.02),
            (self.pos_embed, 0.02),
        ):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=spread)

    @property
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes; `head_dist` is another one beside it."""
        return cast("nn.Module", self._modules["head"])

    def parts(self) -> Mapping[Part, list[nn.Parameter]]:
        """Return the parameters of the backbone, of blocks (none), and of the head or both."""
        found = dict(super().parts())
        more = [] if self.head_dist is None else list(self.head_dist.parameters())
        others = {id(parameter) for parameter in more}
        found["backbone"] = [weight for weight in found["backbone"] if id(weight) not in others]
        return {**found, "head": found["head"] + more}

    def takes(self, height: int, width: int) -> bool:
        """Whether images of a size may come in; `_whole` says what is wrong with others."""
        self._whole(height, width)
        return True

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalized images."""
        seen = self.pooled(*self.encoded(images))
        scores = self.head(seen[:, 0])
        return scores if self.head_dist is None else (scores + self.head_dist(seen[:, 1])) / 2

    def features(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n w"]:
        """Return all tokens behind the last layer and its norm, for normalized images."""
        return self.norm(self.encoded(images)[0])

    def pooled(
        self, tokens: Float[Tensor, "b n w"], layout: TokenLayout
    ) -> Float[Tensor, "b heads w"]:
        """Return what each head sees of the tokens behind the last layer."""
        if self.pool == "class":
            return self.fc_norm(self.norm(tokens[:, : 1 + self.distilled]))
        patches = self.norm(tokens[:, layout.before :])
        taken = patches.mean(1) if self.attn_pool is None else self.attn_pool(patches, layout)
        return self.fc_norm(taken).unsqueeze(1)

    def encoded(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens behind the last layer, before its norm, and where they lie.

        Raises:
            ValueError: If patches do not fill the images, and these may not be padded.
        """
        x, layout = self.patch_dropout(*self._embedded(images))
        again = self.checkpointing and torch.is_grad_enabled()
        for layer in self.blocks:
            # A layer that is computed again would be seen again.
            if again and not cast("EncoderLayer", layer).attn.tap.wanted:
                x = cast("Tensor", checkpoint(layer, x, layout, use_reentrant=False))
            else:
                x = layer(x, layout)
        return x, layout

    def _embedded(self, images: Tensor) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens before the first layer, with their positions."""
        height, width = self._whole(images.shape[2], images.shape[3])
        missing = (height - images.shape[2], width - images.shape[3])
        if self.pad:
            images = padded(images, (0, missing[1], 0, missing[0]))
        features = self.patch_embed(images)
        layout = self._layout((features.shape[2], features.shape[3]), missing, features.device)
        x, always = features.flatten(2).transpose(1, 2), None
        if self.pos_embed is not None:
            always, cells = learned_places(
                self.pos_embed, self.grid, layout.grid, rule=self.resample
            )
            x = x + cells
        elif self.positions == "sine":
            x = x + sine_positions(layout.grid, self.width, device=x.device)
        if not self.roles:
            return x.contiguous(), layout
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        first = torch.cat([part for part in tokens if part is not None], 1)
        first = first + always if always is not None and self.prefix_positions else first
        return torch.cat((first.expand(x.shape[0], -1, -1), x), 1), layout

    def _layout(
        self, grid: tuple[int, int], missing: tuple[int, int], device: torch.device
    ) -> TokenLayout:
        rotation = None
        if self.positions == "rotary":
            head = self.width // self.heads
            rotation = token_rotations(grid, head, before=len(self.roles), device=device)
        notes = {"positions": self.positions, "resample": self.resample, "padded": missing}
        return TokenLayout(grid, self.roles, rotation=rotation, notes=notes)

    def _whole(self, height: int, width: int) -> tuple[int, int]:
        return whole_size(height, width, patch=self.patch_embed.patch, pad=self.pad)
