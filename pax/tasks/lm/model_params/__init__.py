# SPDX-License-Identifier: Apache-2.0
"""Experiments that build a task from class constants, without data."""

from __future__ import annotations

from pax.tasks.lm.default_learners import (
  set_default_adafactor,
  set_default_adam,
)
from pax.tasks.lm.model_params.bert import (
  TransformerBertPmapAdam,
  TransformerBertSpmdAdafactor,
)
from pax.tasks.lm.model_params.classification import ClassificationModelAdam
from pax.tasks.lm.model_params.lm_pipeline import (
  TransformerLmSpmdPipelineAdafactor,
)
from pax.tasks.lm.model_params.lm_pmap import TransformerLmPmapAdam
from pax.tasks.lm.model_params.lm_spmd import TransformerLmSpmdAdafactor
from pax.tasks.lm.sharding_annotations import (
  set_sharding_annotations_v1,
  set_sharding_annotations_with_expert_parallelism,
)
from pax.tasks.lm.transformer_configs import maybe_setup_moe_params

__all__ = [
  'ClassificationModelAdam',
  'TransformerBertPmapAdam',
  'TransformerBertSpmdAdafactor',
  'TransformerLmPmapAdam',
  'TransformerLmSpmdAdafactor',
  'TransformerLmSpmdPipelineAdafactor',
  'maybe_setup_moe_params',
  'set_default_adafactor',
  'set_default_adam',
  'set_sharding_annotations_v1',
  'set_sharding_annotations_with_expert_parallelism',
]
