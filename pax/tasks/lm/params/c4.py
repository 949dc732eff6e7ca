# SPDX-License-Identifier: Apache-2.0
"""Language models on C4."""

from __future__ import annotations

from pax.tasks.lm.adam_params import (
  TransformerLmSpmdAdam as TransformerLmSpmdAdam,
)
from pax.tasks.lm.adam_params import (
  TransformerLmSpmdPipelineAdam as TransformerLmSpmdPipelineAdam,
)
from pax.tasks.lm.adam_params import (
  set_adam_and_learning_rate_schedule as set_adam_and_learning_rate_schedule,
)
from pax.tasks.lm.gpt3 import configure_gpt3_task as configure_gpt3_task
