from .batch import (
    CaptionBatch as CaptionBatch,
)
from .batch import (
    CaptionSample as CaptionSample,
)
from .batch import (
    caption_batch as caption_batch,
)
from .dataset import (
    CaptionDataset as CaptionDataset,
)
from .dataset import (
    mirrored_words as mirrored_words,
)
from .files import (
    CaptionEntry as CaptionEntry,
)
from .files import (
    CaptionSplit as CaptionSplit,
)
from .files import (
    check_disjoint as check_disjoint,
)
from .files import (
    check_ids as check_ids,
)
from .files import (
    in_split as in_split,
)
from .files import (
    of_split as of_split,
)
from .files import (
    per_split as per_split,
)
from .files import (
    read_captions as read_captions,
)
from .files import (
    read_split as read_split,
)
from .files import (
    split_entries as split_entries,
)
from .formats import (
    Remark as Remark,
)
from .formats import (
    recognized as recognized,
)
from .formats import (
    remarks as remarks,
)
from .images import (
    CaptionedImages as CaptionedImages,
)
from .images import (
    CaptionedPhotos as CaptionedPhotos,
)
from .images import (
    missing_photos as missing_photos,
)
from .predictions import (
    Results as Results,
)
from .predictions import (
    read_results as read_results,
)
from .vocabulary import (
    Vocabulary as Vocabulary,
)
from .vocabulary import (
    split_words as split_words,
)
