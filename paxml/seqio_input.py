# SPDX-License-Identifier: Apache-2.0
"""Re-exports inputs that read SeqIO tasks under paxml's path."""

from __future__ import annotations

from pax.inputs.lm_features import (
  LanguageModelFeatures,
  PackedLanguageModelFeatures,
)
from pax.inputs.seqio_input import SeqIOInput
from pax.inputs.sequence_features import SequenceModelFeatures

__all__ = [
  'LanguageModelFeatures',
  'PackedLanguageModelFeatures',
  'SeqIOInput',
  'SequenceModelFeatures',
]
