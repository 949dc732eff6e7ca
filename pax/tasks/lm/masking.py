# SPDX-License-Identifier: Apache-2.0
"""Random masking of tokens for masked language models, in numpy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from praxis import base_hyperparams


class MaskedLmDataAugmenter(base_hyperparams.FiddleBaseParameterizable):
  """Replaces random tokens by the mask token or by random tokens.

  The counterpart of `praxis.layers.augmentations.MaskedLmDataAugmenter` for
  input pipelines.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # Random token ids are below it.
  vocab_size: int = 32000
  # Probabilities that a token is to be predicted and is replaced by the mask,
  # replaced by a random token, or unchanged.
  mask_prob: float = 0.12
  random_prob: float = 0.015
  same_prob: float = 0.015
  # Id of the mask token.
  mask_token_id: int = -1
  # Ids that are never random tokens, such as those of separators.
  random_avoid_ids: Sequence[int] = ()

  def validate(self) -> None:
    """Checks the fields.

    Raises:
      ValueError: The mask token or a probability is out of range.
    """
    if not 0 <= self.mask_token_id < self.vocab_size:
      raise ValueError(
        'mask_token_id of mlm_augmenter must be in [0, vocab_size), got '
        f'{self.mask_token_id} with vocab_size {self.vocab_size}'
      )
    probs = (self.mask_prob, self.random_prob, self.same_prob)
    if min(probs) < 0 or not 0 < sum(probs) < 1:
      raise ValueError(
        'mask_prob, random_prob and same_prob of mlm_augmenter must not be '
        f'negative, with a sum in (0, 1), got {probs}'
      )
    if self.random_prob and not len(self._random_ids):
      raise ValueError(
        'random_avoid_ids of mlm_augmenter must leave ids below vocab_size'
        f' {self.vocab_size}, got {self.random_avoid_ids}'
      )

  def __call__(
    self, ids: Int32[np.ndarray, ' T'], random: np.random.Generator
  ) -> tuple[Int32[np.ndarray, ' T'], Float32[np.ndarray, ' T']]:
    """Returns the masked ids, and 1 where a token is to be predicted."""
    uniform = random.random(len(ids))
    tokens = random.integers(
      self._num_random_ids, size=len(ids), dtype=np.int32
    )
    if len(self.random_avoid_ids):
      tokens = self._random_ids[tokens]
    replace_prob = self.mask_prob + self.random_prob
    masked_ids = np.where(uniform < replace_prob, tokens, ids)
    masked_ids[uniform < self.mask_prob] = self.mask_token_id
    masked_pos = uniform < replace_prob + self.same_prob
    return masked_ids.astype(np.int32), masked_pos.astype(np.float32)

  @functools.cached_property
  def _random_ids(self) -> Int32[np.ndarray, ' V']:
    """The ids that random tokens have."""
    ids = np.arange(self.vocab_size, dtype=np.int32)
    return np.setdiff1d(ids, np.asarray(self.random_avoid_ids, np.int32))

  @property
  def _num_random_ids(self) -> int:
    if not len(self.random_avoid_ids):
      return self.vocab_size
    return len(self._random_ids)


def make_masked_ml_data_augmenter(**kwargs: Any) -> MaskedLmDataAugmenter:
  """Returns an augmenter with these fields."""
  return MaskedLmDataAugmenter(**kwargs)
