# SPDX-License-Identifier: Apache-2.0
"""Experiments without data: tasks made from a class's constants."""

from __future__ import annotations

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
from pax.tasks.lm.task_parts import (
  maybe_setup_moe_params,
  set_default_adafactor,
  set_default_adam,
  set_sharding_annotations_v1,
  set_sharding_annotations_with_expert_parallelism,
)

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
