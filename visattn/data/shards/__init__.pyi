from .datasets import (
    ShardedPhotos as ShardedPhotos,
    ShardedTensors as ShardedTensors,
    ShardEntries as ShardEntries,
    ShardImages as ShardImages,
    caption_entry as caption_entry,
)
from .format import (
    ShardInfo as ShardInfo,
    ShardMetadata as ShardMetadata,
    SplitMetadata as SplitMetadata,
    file_sha256 as file_sha256,
    index_name as index_name,
    open_index as open_index,
    padded_size as padded_size,
    read_json as read_json,
    read_plan_hash as read_plan_hash,
    sample_key as sample_key,
    shard_name as shard_name,
    write_json as write_json,
)
from .reader import (
    ShardSamples as ShardSamples,
    decode_image as decode_image,
)
from .sources import (
    InMemorySource as InMemorySource,
    ShardPlan as ShardPlan,
    ShardSample as ShardSample,
    ShardSource as ShardSource,
    caption_plan as caption_plan,
    folder_plan as folder_plan,
    image_extension as image_extension,
    in_memory_plan as in_memory_plan,
)
from .verify import (
    ShardFault as ShardFault,
    check_shards as check_shards,
    find_shard_faults as find_shard_faults,
)
from .webdataset import (
    SampleStream as SampleStream,
    StreamedSample as StreamedSample,
    StreamLoader as StreamLoader,
    check_url as check_url,
    import_webdataset as import_webdataset,
    parse_streamed_sample as parse_streamed_sample,
)
from .writer import (
    shard_files as shard_files,
    shuffled_order as shuffled_order,
    write_shards as write_shards,
)
