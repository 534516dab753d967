"""MAC network: each step attends to words of the question, then to grid cells of the image.

    control of step i-1 --+
                          +-- join --> scores of the words --> softmax --> their mean: control i
    query i (question) ---+
    control i, memory i-1, cells --> scores of the cells --> softmax --> their mean: what is read
    what is read, memory i-1 --> memory i;      the last memory and the question --> answer

Source:
    Hudson and Manning 2018, arXiv:1803.03067.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import masked_softmax
from visattn.functional.captions import WordPacking
from visattn.models.base import ImageEncoder
from visattn.models.vqa.model import (
    AnswerOutput,
    EncodedQuestions,
    GridTokens,
    QuestionEncoder,
    VQAModel,
    answer_head,
    questions_by_image,
)


class ControlUnit(nn.Module):
    """Selects the operation of a step by attention to the words of the question.

    Source:
        Hudson and Manning 2018, arXiv:1803.03067, equations c1 to c2.3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * dim, dim)
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(
        self,
        control: Float[Tensor, "r d"],
        query: Float[Tensor, "r d"],
        question: EncodedQuestions,
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r t"]]:
        """Return the next control, a weighted mean of the words, and the weights."""
        joined = self.join(torch.cat((control, query), -1))
        scores = self.score(joined.unsqueeze(1) * question.words).squeeze(-1)
        weights = masked_softmax(scores, question.mask)
        return (weights.unsqueeze(1) @ question.words).squeeze(1), weights


class ReadUnit(nn.Module):
    """Reads from the image: attention to the cells, from the memory and the control.

    With I = (W_m m + b_m) * (W_k k + b_k) and I' = W [I; k], the score of a cell is w · (c * I').
    It is linear in I', hence equal to (W₁ᵀ (w * c) * (W_m m + b_m)) · (W_k k + b_k) + W₂ᵀ (w * c) ·
    k up to a constant for all cells. In this form no array has a vector per question and cell.

    Source:
        Hudson and Manning 2018, arXiv:1803.03067, equations r1 to r3.2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.memory = nn.Linear(dim, dim)
        self.knowledge = nn.Linear(dim, dim)
        self.join = nn.Linear(2 * dim, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)
        self.tap = Tap("tokens", single_query=True)

    def forward(
        self,
        control: Float[Tensor, "r d"],
        memory: Float[Tensor, "r d"],
        cells: Float[Tensor, "b n d"],
        packing: WordPacking,
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r n"]]:
        """Return what is read, and the weights of the cells."""
        interaction, direct = ((control * self.score.weight[0]) @ self.join.weight).chunk(2, -1)
        queries = torch.cat((interaction * self.memory(memory), direct), -1)
        queries = packing.by_image(queries, len(cells))
        scores = queries @ torch.cat((self.knowledge(cells), cells), -1).mT
        weights = self.tap(packing.from_images(scores).softmax(-1))
        return packing.from_images(packing.by_image(weights, len(cells)) @ cells), weights


class WriteUnit(nn.Module):
    """Joins what was read with the memory.

    Source:
        Hudson and Manning 2018, arXiv:1803.03067, equation w1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * dim, dim)

    def forward(
        self, memory: Float[Tensor, "r d"], read: Float[Tensor, "r d"]
    ) -> Float[Tensor, "r d"]:
        """Return the next memory."""
        return self.join(torch.cat((read, memory), -1))


class MAC(VQAModel):
    """Memory, attention and composition: a chain of steps with a control and a memory.

    Each step has a map over the cells and weights over the words.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Dimension of control, memory, cells and words.
        steps: Number of steps; with fewer, maps are easier to read.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "what", "color")
        >>> model = MAC(words, ("red", "blue"), encoder, dim=16).eval()
        >>> output = model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4, 5]]))
        >>> output.attention.shape, output.words.shape
        (torch.Size([1, 4, 15]), torch.Size([1, 4, 2]))

    Source:
        Hudson and Manning 2018, arXiv:1803.03067, section 3.2. Deviation: a GRU instead of an LSTM;
        no self-attention among memories and no memory gate, which the paper has as options.
        Learned positions are not in the paper.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 128,
        steps: int = 4,
    ) -> None:
        super().__init__(words, answers, encoder)
        self.hop_names = tuple(f"step {index}" for index in range(1, steps + 1))
        self.tokens = GridTokens(encoder.channels, dim, encoder.grid_size)
        self.questions = QuestionEncoder(len(words), dim, "gru")
        self.first_control, self.first_memory = (nn.Parameter(torch.zeros(dim)) for _ in range(2))
        self.step_queries = nn.ModuleList(nn.Linear(dim, dim) for _ in range(steps))
        self.control = ControlUnit(dim)
        self.read = ReadUnit(dim)
        self.write = WriteUnit(dim)
        # The first entry was dropout; it keeps the weight names of files.
        self.head = nn.Sequential(nn.Identity(), answer_head(2 * dim, len(answers), dim))

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        packing = questions_by_image(questions, image_indices)
        cells = self.tokens(features)
        question = self.questions(questions)
        control = self.first_control.expand(len(questions), -1)
        memory = self.first_memory.expand(len(questions), -1)
        maps: list[Tensor] = []
        words: list[Tensor] = []
        self.read.tap.grid = self.grid_size
        for step_query in self.step_queries:
            control, word_weights = self.control(control, step_query(question.vector), question)
            read, weights = self.read(control, memory, cells, packing)
            memory = self.write(memory, read)
            maps.append(weights)
            words.append(word_weights)
        logits = self.head(torch.cat((question.vector, memory), -1))
        return AnswerOutput(logits, torch.stack(maps, 1), torch.stack(words, 1))
