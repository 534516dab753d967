from .arguments import (
    completed as completed,
)
from .arguments import (
    mistake as mistake,
)
from .arguments import (
    values as values,
)
from .dry_run import (
    DryRunCLI as DryRunCLI,
)
from .dry_run import (
    rehearse as rehearse,
)
from .entry import (
    help_text as help_text,
)
from .errors import (
    errors_told as errors_told,
)
from .errors import (
    plain_error as plain_error,
)
from .import_allowlist import (
    trust_only_known_packages as trust_only_known_packages,
)
from .lightning_cli import (
    TrainingCLI as TrainingCLI,
)
from .lightning_cli import (
    quieten as quieten,
)
from .parser import (
    Parser as Parser,
)
from .parser import (
    error_text as error_text,
)
from .score_table import (
    score_table as score_table,
)
from .trainer_checks import (
    check_trainer as check_trainer,
)
from .variables import (
    expanded as expanded,
)
from .yaml_safety import (
    check_configs as check_configs,
)
from .yaml_safety import (
    checked_texts as checked_texts,
)
