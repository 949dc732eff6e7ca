# SPDX-License-Identifier: Apache-2.0
"""Fields, shapes and dtypes of batches of text.

Inputs return NestedMaps; these protocols are their types. B is the number of
rows in the batch of a host, absent in a single row; T is the length of a row.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int32


class TokenBatch(Protocol):
  """Token sequences with padding."""

  ids: Int32[np.ndarray, '*B T']
  # 1 where `ids` is padding, else 0.
  paddings: Float32[np.ndarray, '*B T']


class PromptBatch(TokenBatch, Protocol):
  """Prompts for a language model to continue."""

  # 1 for a prompt, 0 for a row that only fills the batch.
  eval_sample_weights: Float32[np.ndarray, ' B']


class PackedBatch(TokenBatch, Protocol):
  """Token sequences; a row holds one or several."""

  # Index of the sequence within the row, from 1; 0 is padding.
  segment_ids: Int32[np.ndarray, '*B T']
  # Position within the sequence, from 0.
  segment_pos: Int32[np.ndarray, '*B T']


class LanguageModelBatch(PackedBatch, Protocol):
  """Inputs and labels of next-token prediction.

  Prefix language models also have `inputs_indicator`, int32 [*B T]: 1 where
  attention is bidirectional.
  """

  labels: Int32[np.ndarray, '*B T']
  # Weight of the loss of each label.
  weights: Float32[np.ndarray, '*B T']


class EncoderDecoderBatch(Protocol):
  """Inputs and labels of sequence-to-sequence models."""

  # Read by the encoder.
  src: PackedBatch
  # Read and predicted by the decoder.
  tgt: LanguageModelBatch
