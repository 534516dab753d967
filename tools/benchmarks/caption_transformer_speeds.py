"""Speed of the transformer captioner compared with torch's decoder and uncached beam search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.caption_speeds import Comparison, FeatureEncoder
from visattn.functional.beams import DecodingConstraints, beam_search
from visattn.functional.captions import caption_loss
from visattn.functional.positions import sincos_pos_embed
from visattn.models.captioning.captioner import AttentionStep
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.results.kinds import END, PAD, SPECIAL_TOKENS, START, UNKNOWN

DIM, HEADS, LAYERS, WORDS, PHOTOS, CAPTIONS = 384, 6, 3, 3000, 13, 5


def captioner() -> TransformerCaptioner:
    """Return the captioner of configs/flickr8k_transformer.yaml, without dropout and encoder."""
    words = [*SPECIAL_TOKENS, *(f"word{index}" for index in range(WORDS - len(SPECIAL_TOKENS)))]
    encoder = FeatureEncoder(1280, (7, 7))
    return TransformerCaptioner(
        words, encoder, embed_dim=DIM, num_layers=LAYERS, num_heads=HEADS, dropout=0.0
    )


def torch_decoder(model: TransformerCaptioner) -> nn.TransformerDecoder:
    """Return torch's decoder with the weights of a captioner."""
    layer = nn.TransformerDecoderLayer(
        DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
    )
    peer = nn.TransformerDecoder(layer, LAYERS, norm=nn.LayerNorm(DIM))
    peer.norm = model.decoder.norm
    layers: Any = zip(peer.layers, model.decoder.layers, strict=True)
    for theirs, ours in layers:
        cross = ours.cross_attn
        packed = {
            theirs.self_attn: (ours.self_attn.qkv.weight, ours.self_attn.qkv.bias),
            theirs.multihead_attn: (
                torch.cat((cross.query.weight, cross.key_value.weight)),
                torch.cat((cross.query.bias, cross.key_value.bias)),
            ),
        }
        for attention, (weight, bias) in packed.items():
            attention.in_proj_weight.data.copy_(weight)
            attention.in_proj_bias.data.copy_(bias)
        theirs.self_attn.out_proj.load_state_dict(ours.self_attn.proj.state_dict())
        theirs.multihead_attn.out_proj.load_state_dict(cross.proj.state_dict())
        theirs.linear1.load_state_dict(ours.mlp.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.mlp.fc2.state_dict())
        for name in ("norm1", "norm2", "norm3"):
            getattr(theirs, name).load_state_dict(getattr(ours, name).state_dict())
    return peer


# ------------------------------------------------------------------ training step


def training() -> Comparison:
    """Training step: 13 photos with 5 captions of 7 to 20 words, 49 places of 1280 features."""
    torch.manual_seed(0)
    model = captioner()
    peer = torch_decoder(model)
    features = torch.randn(PHOTOS, 1280, 7, 7)
    lengths = torch.randint(7, 21, (PHOTOS * CAPTIONS,)).sort(descending=True).values
    lengths[0] = 20
    captions = torch.randint(len(SPECIAL_TOKENS), WORDS, (len(lengths), 21))
    captions[:, 0] = START
    images = torch.randperm(len(lengths)) % PHOTOS

    def ours() -> Tensor:
        model.zero_grad()
        output = model.teacher_force(features, captions[:, :-1], lengths, images)
        targets = captions[output.rows, output.steps + 1]
        loss = caption_loss(output.logits, targets, len(lengths), reduction="mean")
        loss.backward()
        return loss.detach()

    def plain() -> Tensor:
        model.zero_grad()
        peer.zero_grad()
        loss = padded_loss(model, peer, features, captions, lengths, images)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(ours(), plain(), atol=1e-4, rtol=1e-4)
    title = "training step of the transformer, 13 x 5 captions, torch.nn.TransformerDecoder"
    return Comparison(title, plain, ours, 1.0)


def padded_loss(
    model: TransformerCaptioner,
    peer: nn.TransformerDecoder,
    features: Tensor,
    captions: Tensor,
    lengths: Tensor,
    images: Tensor,
) -> Tensor:
    """Return the loss with torch's decoder on padded captions, each with a copy of its photo."""
    decoder = model.decoder
    places = decoder.feature_proj(features.flatten(2).transpose(1, 2)) + decoder.grid_positions
    count = int(lengths[0])
    positions = sincos_pos_embed((1, count), 2 * DIM)[:, DIM:]
    hidden = peer(
        decoder.embedding(captions[:, :count]) * DIM**0.5 + positions,
        places[images],
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(count),
        tgt_is_causal=True,
    )
    valid = torch.arange(count) < lengths[:, None]
    logits = decoder.output_proj(hidden[valid]) @ decoder.embedding.weight.mT + decoder.output_bias
    return cross_entropy(logits, captions[:, 1 : count + 1][valid])


# ------------------------------------------------------------------ beam search


@dataclass(frozen=True)
class PrefixState:
    """State of a search without a cache: the features and all words of each hypothesis."""

    features: Tensor
    prefixes: Tensor

    def reorder_beams(self, parents: Tensor) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        images = torch.arange(len(parents))[:, None]
        return replace(self, prefixes=self.prefixes[images, parents])

    def select_images(self, index: Tensor | slice) -> Self:
        """Return the state of some of the images."""
        return replace(self, features=self.features[index], prefixes=self.prefixes[index])


def uncached_step(
    model: TransformerCaptioner,
) -> Callable[[PrefixState, Tensor], tuple[Tensor, PrefixState, AttentionStep]]:
    """Return a decoding step that reads all words of each hypothesis again."""

    def step(state: PrefixState, token: Tensor) -> tuple[Tensor, PrefixState, AttentionStep]:
        prefixes = torch.cat((state.prefixes, token.unsqueeze(-1)), -1)
        images, beams, count = prefixes.shape
        output = model.teacher_force(
            state.features,
            prefixes.flatten(0, 1),
            torch.full((images * beams,), count),
            torch.arange(images).repeat_interleave(beams),
        )
        last = output.steps == count - 1
        shape = (images, beams)
        attention = AttentionStep(
            output.attention.weights[last].unflatten(0, shape),
            output.attention.gate[last].unflatten(0, shape),
        )
        logits = output.logits[last].unflatten(0, shape)
        return logits, replace(state, prefixes=prefixes), attention

    return step


def search() -> Comparison:
    """Beam search: 16 photos, captions of 12 to 20 words, beam size 5."""
    torch.manual_seed(0)
    model = captioner().eval()
    features = torch.randn(16, 1280, 7, 7)
    constraints = DecodingConstraints(END, 20, 12, 0.0, (PAD, START, UNKNOWN))
    start = torch.zeros(len(features), 1, 0, dtype=torch.long)

    def plain() -> list[list[int]]:
        output = beam_search(
            uncached_step(model),
            PrefixState(features, start),
            num_images=len(features),
            start_token=START,
            constraints=constraints,
            beam_size=5,
        )
        return output.tokens[:, 0].tolist()

    def ours() -> list[list[int]]:
        output = model.search(features, beam_size=5, max_length=20, min_length=12)
        return output.tokens[:, 0].tolist()

    if ours() != plain():
        raise SystemExit("transformer: captions with and without the cache differ")
    return Comparison(
        "beam search of the transformer, 16 photos, beam 5, no cache", plain, ours, 3.0
    )


COMPARISONS: dict[str, Callable[[], Comparison]] = {
    "transformer-training": training,
    "transformer-search": search,
}
