"""Hierarchical co-attention: words, phrases and the question attend to the image and back."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.functional.attention import context_vector, masked_softmax
from visattn.models.base import ImageEncoder
from visattn.models.vqa.model import AnswerOutput, GridTokens, VQAModel
from visattn.results.kinds import PAD

CoattentionMode = Literal["parallel", "alternating"]


class CoattentionOutput(NamedTuple):
    """What co-attention reads from the image and from the question, and its weights."""

    image: Float[Tensor, "r d"]
    question: Float[Tensor, "r d"]
    image_weights: Float[Tensor, "r n"]
    question_weights: Float[Tensor, "r t"]
    """Zero at padding."""
    affinity: Float[Tensor, "r t n"]
    """Affinity of each word and cell, between -1 and 1: no distribution. Zero at padding."""


def parallel_coattention(
    places: Float[Tensor, "r n d"],
    words: Float[Tensor, "r t d"],
    mask: Bool[Tensor, "r t"],
    *,
    affinity_weight: Float[Tensor, "d d"],
    image_weight: Float[Tensor, "a d"],
    question_weight: Float[Tensor, "a d"],
    image_vector: Float[Tensor, " a"],
    question_vector: Float[Tensor, " a"],
) -> CoattentionOutput:
    """Return parallel co-attention: image and question attend to each other at the same time.

    With C = tanh(Q W_b Vᵀ), the image is attended to with the scores
    w_v · tanh(W_v V + Cᵀ (W_q Q)) and the question with w_q · tanh(W_q Q + C (W_v V)).

    Args:
        places: Cells of the image, V.
        words: Words of the question, Q.
        mask: True where there is a word. The affinity of padding is set to 0, so that padding
            changes nothing.
        affinity_weight: W_b.
        image_weight: W_v.
        question_weight: W_q.
        image_vector: w_v.
        question_vector: w_q.

    Example:
        >>> places, words = torch.zeros(1, 3, 2), torch.zeros(1, 1, 2)
        >>> eye, vector = torch.eye(2), torch.ones(2)
        >>> output = parallel_coattention(
        ...     places, words, torch.ones(1, 1, dtype=torch.bool), affinity_weight=eye,
        ...     image_weight=eye, question_weight=eye, image_vector=vector, question_vector=vector)
        >>> output.image_weights, output.question_weights
        (tensor([[0.3333, 0.3333, 0.3333]]), tensor([[1.]]))

    Source:
        Lu et al. 2016, arXiv:1606.00061, equations 3 to 5. Deviation: padding is masked in C.
    """
    affinity = (words @ affinity_weight @ places.mT).tanh().masked_fill(~mask[..., None], 0.0)
    image_part = places @ image_weight.mT
    question_part = words @ question_weight.mT
    image_scores = (image_part + affinity.mT @ question_part).tanh() @ image_vector
    question_scores = (question_part + affinity @ image_part).tanh() @ question_vector
    image_weights = image_scores.softmax(-1)
    question_weights = masked_softmax(question_scores, mask)
    return CoattentionOutput(
        context_vector(image_weights, places),
        context_vector(question_weights, words),
        image_weights,
        question_weights,
        affinity,
    )


def guided_attention(
    features: Float[Tensor, "r n d"],
    guidance: Float[Tensor, "r a"] | None,
    mask: Bool[Tensor, "r n"] | None = None,
    *,
    feature_weight: Float[Tensor, "a d"],
    vector: Float[Tensor, " a"],
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r n"]]:
    """Return one step of alternating co-attention: attention to features, guided by a vector.

    The scores are w · tanh(W_x X + W_g g). Alternating co-attention attends to the question
    without guidance, to the image guided by what was read, and to the question guided by that.

    Args:
        features: Words or cells, X.
        guidance: W_g g, projected guidance; None for the first step, which has none.
        mask: True where there is a word; None if all features are real.
        feature_weight: W_x.
        vector: w.

    Example:
        >>> features = torch.tensor([[[0.0], [2.0]]])
        >>> one = torch.ones(1, 1)
        >>> guided_attention(features, None, feature_weight=0 * one, vector=torch.ones(1))
        (tensor([[1.]]), tensor([[0.5000, 0.5000]]))

    Source:
        Lu et al. 2016, arXiv:1606.00061, equation 6, without the term 1ᵀ of its first factor.
    """
    hidden = features @ feature_weight.mT
    if guidance is not None:
        hidden = hidden + guidance.unsqueeze(-2)
    scores = hidden.tanh() @ vector
    weights = masked_softmax(scores, mask)
    return context_vector(weights, features), weights


class LevelOutput(NamedTuple):
    """What one level reads from the image and the question, together, and its weights."""

    joint: Float[Tensor, "r d"]
    image_weights: Float[Tensor, "r n"]
    word_weights: Float[Tensor, "r t"]


class HierarchicalCoAttention(VQAModel):
    """Hierarchical question-image co-attention at the level of words, phrases and the question.

    The levels are its hops: each has a map over the cells and weights over the words.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        mode: `parallel`: image and question attend to each other at the same time; `alternating`:
            the question first, then the image, then the question again.
        dim: Dimension of cells and words.
        positions: Whether cells contain their place.
        grid_layers: Number of self-attention layers among the cells.
        dropout: Dropout rate of the cells, of what is read, and before the classifier.

    Raises:
        ValueError: If the mode is unknown.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "what", "color")
        >>> model = HierarchicalCoAttention(words, ("red", "blue"), encoder, dim=16).eval()
        >>> output = model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4, 5]]))
        >>> output.attention.shape, output.words.shape
        (torch.Size([1, 3, 15]), torch.Size([1, 3, 2]))

    Source:
        Lu et al. 2016, arXiv:1606.00061, equations 2 to 7. Deviations: W_b has no bias; padding is
        masked in C and before convolutions. Positions and grid layers are not in the paper.
    """

    hop_names = ("words", "phrases", "question")

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        mode: CoattentionMode = "parallel",
        dim: int = 128,
        positions: bool = False,
        grid_layers: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(words, answers, encoder)
        check_choice("mode", mode, get_args(CoattentionMode))
        self.tokens = GridTokens(
            encoder.channels,
            dim,
            encoder.grid_size,
            tanh=True,
            positions=positions,
            num_layers=grid_layers,
        )
        self.hierarchy = QuestionHierarchy(len(words), dim)
        build = ParallelLevel if mode == "parallel" else AlternatingLevel
        levels = nn.ModuleList(build(dim) for _ in self.hop_names)
        self.levels = cast("Sequence[ParallelLevel | AlternatingLevel]", levels)
        widths = (dim, 2 * dim, 2 * dim)
        self.joins = nn.ModuleList(nn.Linear(width, dim) for width in widths)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(dim, len(answers))

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        places = self.drop(self.tokens(features))
        places = places if image_indices is None else places[image_indices]
        mask = questions != PAD
        outputs = list[LevelOutput]()
        hidden = None
        for level, join, words in zip(
            self.levels, self.joins, self.hierarchy(questions), strict=True
        ):
            level.tap.grid = self.grid_size
            outputs.append(level(places, words, mask))
            read = self.drop(outputs[-1].joint)
            hidden = join(read if hidden is None else torch.cat((read, hidden), -1)).tanh()
        maps = torch.stack([output.image_weights for output in outputs], 1)
        words = torch.stack([output.word_weights for output in outputs], 1)
        return AnswerOutput(self.head(self.drop(hidden)), maps, words)


class QuestionHierarchy(nn.Module):
    """Words, phrases and their contexts: embeddings, n-gram convolutions and an LSTM.

    Example:
        >>> levels = QuestionHierarchy(11, 4)(torch.tensor([[4, 7, 0]]))
        >>> [level.shape for level in levels] == [(1, 3, 4)] * 3
        True

    Source:
        Lu et al. 2016, arXiv:1606.00061, equations 1 and 2.
    """

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, dim, padding_idx=PAD)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, size) for size in (1, 2, 3))
        self.lstm = nn.LSTM(dim, dim, batch_first=True)

    def forward(self, questions: Int[Tensor, "r t"]) -> tuple[Float[Tensor, "r t d"], ...]:
        """Return the words, the phrases and their contexts; 0 at padding."""
        padding = (questions == PAD)[..., None]
        words = self.embedding(questions).masked_fill(padding, 0.0)
        # A bigram is a word and the next; a trigram also has the word before.
        grams = [
            conv(nn.functional.pad(words.mT, ((size - 1) // 2, size // 2))).mT
            for size, conv in enumerate(self.convs, 1)
        ]
        phrases = torch.stack(grams).amax(0).tanh().masked_fill(padding, 0.0)
        contexts = self.lstm(phrases)[0].masked_fill(padding, 0.0)
        return words, phrases, contexts


class ParallelLevel(nn.Module):
    """One level of parallel co-attention; see `parallel_coattention`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.affinity = nn.Linear(dim, dim, bias=False)
        self.image, self.question = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.image_score, self.question_score = (nn.Linear(dim, 1, bias=False) for _ in range(2))
        self.tap = Tap("tokens", single_query=True)

    def forward(
        self,
        places: Float[Tensor, "r n d"],
        words: Float[Tensor, "r t d"],
        mask: Bool[Tensor, "r t"],
    ) -> LevelOutput:
        """Return what is read from image and question, and the weights."""
        output = parallel_coattention(
            places,
            words,
            mask,
            affinity_weight=self.affinity.weight,
            image_weight=self.image.weight,
            question_weight=self.question.weight,
            image_vector=self.image_score.weight[0],
            question_vector=self.question_score.weight[0],
        )
        weights = self.tap(output.image_weights)
        return LevelOutput(output.image + output.question, weights, output.question_weights)


class AlternatingLevel(nn.Module):
    """One level of alternating co-attention: question, image, question; see `guided_attention`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.summary = GuidedStep(dim, guided=False)
        self.image = GuidedStep(dim)
        self.question = GuidedStep(dim)
        self.tap = Tap("tokens", single_query=True)

    def forward(
        self,
        places: Float[Tensor, "r n d"],
        words: Float[Tensor, "r t d"],
        mask: Bool[Tensor, "r t"],
    ) -> LevelOutput:
        """Return what is read from image and question, and the weights."""
        summary, _ = self.summary(words, None, mask)
        image, image_weights = self.image(places, summary, None)
        question, word_weights = self.question(words, image, mask)
        return LevelOutput(image + question, self.tap(image_weights), word_weights)


class GuidedStep(nn.Module):
    """The weights of one step of alternating co-attention, with or without guidance."""

    def __init__(self, dim: int, *, guided: bool = True) -> None:
        super().__init__()
        self.features = nn.Linear(dim, dim, bias=False)
        self.guidance = nn.Linear(dim, dim, bias=False) if guided else None
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(
        self,
        features: Float[Tensor, "r n d"],
        guidance: Float[Tensor, "r d"] | None,
        mask: Bool[Tensor, "r n"] | None,
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r n"]]:
        """Return what is read, and the weights; see `guided_attention`."""
        projected = None if self.guidance is None else self.guidance(guidance)
        return guided_attention(
            features,
            projected,
            mask,
            feature_weight=self.features.weight,
            vector=self.score.weight[0],
        )
