from .beam_search import (
    BeamSearchOutput as BeamSearchOutput,
)
from .beam_search import (
    DecodingConstraints as DecodingConstraints,
)
from .beam_search import (
    Ended as Ended,
)
from .beam_search import (
    History as History,
)
from .beam_search import (
    Searchable as Searchable,
)
from .beam_search import (
    beam_search as beam_search,
)
from .losses import (
    attention_supervision as attention_supervision,
)
from .losses import (
    caption_loss as caption_loss,
)
from .losses import (
    doubly_stochastic_penalty as doubly_stochastic_penalty,
)
from .losses import (
    packed_rows as packed_rows,
)
from .losses import (
    packed_targets as packed_targets,
)
from .sampling import (
    Samples as Samples,
)
from .sampling import (
    draw_samples as draw_samples,
)
