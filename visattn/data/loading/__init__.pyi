from .fallback import (
    ReadFallback as ReadFallback,
)
from .sample_seed import (
    mix_seed as mix_seed,
    per_sample_uniforms as per_sample_uniforms,
)
from .samplers import (
    DistributedEvalSampler as DistributedEvalSampler,
    EpochIndexSampler as EpochIndexSampler,
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .stateful_loader import (
    StatefulDataLoader as StatefulDataLoader,
)
