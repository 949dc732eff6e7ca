# SPDX-License-Identifier: Apache-2.0
"""Re-exports inputs that read SeqIO tasks under paxml's path."""

from __future__ import annotations

from pax.inputs.seqio.converters import (
  RemoveProvenance,
  UnflattenAndRemoveProvenance,
)
from pax.inputs.seqio.evaluation import get_eval_hparams_for_seqio
from pax.inputs.seqio.lm_features import (
  LanguageModelFeatures,
  PackedLanguageModelFeatures,
)
from pax.inputs.seqio.outputs import (
  DECODE_METRICS_PREFIX,
  EVAL_METRICS_PREFIX,
  MetricType,
  is_packing_on,
  maybe_update_decode_output_keys,
  select_split,
  should_process_outputs,
)
from pax.inputs.seqio.seqio_input import SeqIOInput
from pax.inputs.seqio.sequence_features import (
  PackedSequenceModelFeatures,
  SequenceModelFeatures,
  SequenceModelFeaturesWithTaskInfo,
)
from pax.programs.seqio_results import process_outputs

__all__ = [
  'DECODE_METRICS_PREFIX',
  'EVAL_METRICS_PREFIX',
  'LanguageModelFeatures',
  'MetricType',
  'PackedLanguageModelFeatures',
  'PackedSequenceModelFeatures',
  'RemoveProvenance',
  'SeqIOInput',
  'SequenceModelFeatures',
  'SequenceModelFeaturesWithTaskInfo',
  'UnflattenAndRemoveProvenance',
  'get_eval_hparams_for_seqio',
  'is_packing_on',
  'maybe_update_decode_output_keys',
  'process_outputs',
  'select_split',
  'should_process_outputs',
]
