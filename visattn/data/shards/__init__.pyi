from .datasets import (
    ShardedPhotos as ShardedPhotos,
)
from .datasets import (
    ShardedRasters as ShardedRasters,
)
from .datasets import (
    ShardEntries as ShardEntries,
)
from .datasets import (
    ShardImages as ShardImages,
)
from .datasets import (
    caption_entry as caption_entry,
)
from .format import (
    ShardFacts as ShardFacts,
)
from .format import (
    ShardInfo as ShardInfo,
)
from .format import (
    SplitFacts as SplitFacts,
)
from .format import (
    hash_of as hash_of,
)
from .format import (
    index_name as index_name,
)
from .format import (
    key_of as key_of,
)
from .format import (
    open_index as open_index,
)
from .format import (
    padded as padded,
)
from .format import (
    plan_of as plan_of,
)
from .format import (
    read_json as read_json,
)
from .format import (
    shard_name as shard_name,
)
from .format import (
    write_json as write_json,
)
from .reader import (
    ShardSamples as ShardSamples,
)
from .reader import (
    decoded as decoded,
)
from .sources import (
    HeldSource as HeldSource,
)
from .sources import (
    ShardPlan as ShardPlan,
)
from .sources import (
    ShardSample as ShardSample,
)
from .sources import (
    ShardSource as ShardSource,
)
from .sources import (
    caption_plan as caption_plan,
)
from .sources import (
    ending as ending,
)
from .sources import (
    folder_plan as folder_plan,
)
from .sources import (
    held_plan as held_plan,
)
from .verify import (
    ShardFault as ShardFault,
)
from .verify import (
    check_shards as check_shards,
)
from .verify import (
    shard_faults as shard_faults,
)
from .webdataset import (
    SampleStream as SampleStream,
)
from .webdataset import (
    StreamedSample as StreamedSample,
)
from .webdataset import (
    StreamLoader as StreamLoader,
)
from .webdataset import (
    check_address as check_address,
)
from .webdataset import (
    secure_webdataset as secure_webdataset,
)
from .webdataset import (
    streamed_sample as streamed_sample,
)
from .writer import (
    mixed_order as mixed_order,
)
from .writer import (
    shard_files as shard_files,
)
from .writer import (
    write_shards as write_shards,
)
