from .cache import (
    FeatureCache as FeatureCache,
    request_header as request_header,
)
from .compute import (
    check_features as check_features,
    compute_features as compute_features,
    write_features as write_features,
)
from .format import (
    FeatureHeader as FeatureHeader,
    lock_folder as lock_folder,
    map_records as map_records,
    pack_records as pack_records,
    read_record as read_record,
    unpack_record as unpack_record,
)
