from .beam_search import (
    BeamHistory as BeamHistory,
    BeamSearchOutput as BeamSearchOutput,
    BeamSearchState as BeamSearchState,
    DecodingConstraints as DecodingConstraints,
    FinishedHypotheses as FinishedHypotheses,
    beam_search as beam_search,
)
from .losses import (
    attention_mass_loss as attention_mass_loss,
    attention_supervision_loss as attention_supervision_loss,
    caption_loss as caption_loss,
    doubly_stochastic_penalty as doubly_stochastic_penalty,
    pack_targets as pack_targets,
    packed_indices as packed_indices,
)
from .sampling import (
    SampledCaptions as SampledCaptions,
    sample_captions as sample_captions,
)
