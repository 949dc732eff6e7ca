# SPDX-License-Identifier: Apache-2.0
"""Tasks: a model, its learner, and the settings of all modes."""

from __future__ import annotations

from pax.checkpoints.loading_rules import LOAD_ALL as LOAD_ALL
from pax.checkpoints.loading_rules import (
  CheckpointLoadingRules as CheckpointLoadingRules,
)
from pax.checkpoints.loading_rules import (
  get_optax_opt_load_rules as get_optax_opt_load_rules,
)
from pax.checkpoints.loading_rules import (
  get_praxis_opt_state_regex as get_praxis_opt_state_regex,
)
from pax.checkpoints.state_restore import (
  restore_pmap_from_tensorstore as restore_pmap_from_tensorstore,
)
from pax.tasks_lib import variable_masks
from pax.tasks_lib.ema import extract_ema as extract_ema
from pax.tasks_lib.ema import has_ema as has_ema
from pax.tasks_lib.ema import is_vectorized as is_vectorized
from pax.tasks_lib.hparams import (
  DECODE_DEFAULT_MUTABLE_LIST as DECODE_DEFAULT_MUTABLE_LIST,
)
from pax.tasks_lib.hparams import (
  EVAL_DEFAULT_MUTABLE_LIST as EVAL_DEFAULT_MUTABLE_LIST,
)
from pax.tasks_lib.hparams import (
  TRAIN_DEFAULT_MUTABLE_LIST as TRAIN_DEFAULT_MUTABLE_LIST,
)
from pax.tasks_lib.hparams import OutputFormatType as OutputFormatType
from pax.tasks_lib.single_task import SingleTask as SingleTask
from pax.tasks_lib.state import create_state as create_state
from pax.tasks_lib.state import (
  create_state_padded_shapes as create_state_padded_shapes,
)
from pax.tasks_lib.state import (
  create_state_partition_specs as create_state_partition_specs,
)
from pax.tasks_lib.state import (
  create_state_unpadded_shapes as create_state_unpadded_shapes,
)
from pax.tasks_lib.variable_masks import (
  filter_vars_for_grad_or_opt as filter_vars_for_grad_or_opt,
)
from pax.tasks_lib.variable_masks import (
  get_excluded_var_mask_for_grad as get_excluded_var_mask_for_grad,
)
from pax.tasks_lib.variable_masks import (
  get_excluded_var_mask_for_opt as get_excluded_var_mask_for_opt,
)

get_frozen_var_mask = variable_masks.get_frozen_var_mask
get_excluded_var_mask_for_grad_or_opt = (
  variable_masks.get_excluded_var_mask_for_grad_or_opt
)
