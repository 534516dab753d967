from .batch import (
    CaptionBatch as CaptionBatch,
    CaptionSample as CaptionSample,
    collate_captions as collate_captions,
)
from .dataset import (
    CaptionDataset as CaptionDataset,
    hflip_sample as hflip_sample,
)
from .files import (
    CaptionEntry as CaptionEntry,
    CaptionSplit as CaptionSplit,
    check_disjoint_splits as check_disjoint_splits,
    check_unique_ids as check_unique_ids,
    entries_of_split as entries_of_split,
    read_caption_splits as read_caption_splits,
    read_captions as read_captions,
    read_split_file as read_split_file,
    select_listed as select_listed,
    select_split as select_split,
)
from .formats import (
    CaptionRecord as CaptionRecord,
    detect_format as detect_format,
    parse_captions as parse_captions,
)
from .images import (
    CaptionedImages as CaptionedImages,
    CaptionedPhotos as CaptionedPhotos,
    missing_photos as missing_photos,
)
from .predictions import (
    CaptionResults as CaptionResults,
    read_caption_results as read_caption_results,
)
from .vocabulary import (
    Vocabulary as Vocabulary,
    split_words as split_words,
)
