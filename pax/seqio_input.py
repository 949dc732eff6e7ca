# SPDX-License-Identifier: Apache-2.0
"""Inputs that read SeqIO's tasks and mixtures."""

from __future__ import annotations

from pax.inputs.lm_features import (
  LanguageModelFeatures as LanguageModelFeatures,
)
from pax.inputs.lm_features import (
  PackedLanguageModelFeatures as PackedLanguageModelFeatures,
)
from pax.inputs.seqio_source import SeqIOInput as SeqIOInput
from pax.inputs.sequence_features import (
  SequenceModelFeatures as SequenceModelFeatures,
)
