from .beam_search import (
    BeamHistory as BeamHistory,
    BeamSearchOutput as BeamSearchOutput,
    BeamSearchState as BeamSearchState,
    DecodingConstraints as DecodingConstraints,
    FinishedHypotheses as FinishedHypotheses,
    beam_search as beam_search,
)
from .hard_attention import (
    HardAttentionLosses as HardAttentionLosses,
    hard_attention_losses as hard_attention_losses,
    multi_sample_bound as multi_sample_bound,
    place_rewards as place_rewards,
)
from .losses import (
    attention_supervision_loss as attention_supervision_loss,
    caption_loss as caption_loss,
    doubly_stochastic_penalty as doubly_stochastic_penalty,
    pack_targets as pack_targets,
    packed_indices as packed_indices,
)
from .sampling import (
    SampledCaptions as SampledCaptions,
    sample_captions as sample_captions,
    sample_categorical as sample_categorical,
)
