from .checkpoints import (
    ResumePoint as ResumePoint,
    find_resume_point as find_resume_point,
    set_aside as set_aside,
)
from .create import (
    ScoreWriter as ScoreWriter,
    create_run_dir as create_run_dir,
    latest_run_dir as latest_run_dir,
    lock_run_dir as lock_run_dir,
    next_run_dir as next_run_dir,
    require_empty_run_dir as require_empty_run_dir,
)
