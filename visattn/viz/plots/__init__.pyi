from .attention_stats import (
    diagnostic_plot as diagnostic_plot,
)
