"""CNN and MLP: the baseline that joins the whole grid and the question."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from visattn.models.encoder import ImageEncoder
from visattn.models.vqa.grid_tokens import answer_head
from visattn.models.vqa.question_encoders import QuestionEncoder, QuestionEncoderType
from visattn.models.vqa_model import AnswerOutput, VQAModel


class CNNMLP(VQAModel):
    """Baseline without attention: an MLP of all features of the grid and the question.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Hidden size of the MLP, and dimension of the question.
        num_layers: Number of hidden layers.
        pool: Size of the squares of cells that are merged by their maximum.
        question_encoder: As in `QuestionEncoder`.
        dropout: Dropout rate before the last layer.

    Raises:
        ValueError: If `num_layers` or `pool` is below 1.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = CNNMLP((*SPECIAL_TOKENS, "what"), ("red", "blue"), encoder, dim=16).eval()
        >>> model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4]])).logits.shape
        torch.Size([1, 2])

    Source:
        Santoro et al. 2017, arXiv:1706.01427, section 5.1, the CNN+MLP baseline.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 256,
        num_layers: int = 2,
        pool: int = 1,
        question_encoder: QuestionEncoderType = "gru",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(words, answers, encoder)
        if min(num_layers, pool) < 1:
            raise ValueError(f"num_layers and pool must be at least 1, got {num_layers} and {pool}")
        self.pool = pool
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        rows, columns = (-(-size // pool) for size in encoder.grid_size)
        self.image = nn.Linear(encoder.channels * rows * columns, dim)
        self.question = nn.Linear(dim, dim, bias=False)
        hidden = (nn.Sequential(nn.Linear(dim, dim), nn.ReLU()) for _ in range(num_layers - 1))
        self.head = nn.Sequential(
            nn.ReLU(), *hidden, nn.Dropout(dropout), answer_head(dim, len(answers), 0)
        )

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        # The first layer of the image and the question together, computed once per image.
        image = self.image(max_pool2d(features, self.pool, ceil_mode=True).flatten(1))
        image = image if image_indices is None else image[image_indices]
        return AnswerOutput(
            self.head(image + self.question(self.questions(questions).vector)), None
        )
