# SPDX-License-Identifier: Apache-2.0
"""Chooses the tokens that a masked language model must guess, in numpy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int32

from praxis import base_hyperparams


class MaskedLmDataAugmenter(base_hyperparams.FiddleBaseParameterizable):
  """Replaces tokens by a mask, by random ones, or by themselves.

  The twin of `praxis.layers.augmentations.MaskedLmDataAugmenter` for inputs.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # Random tokens are below this.
  vocab_size: int = 32000
  # The probabilities that a token becomes the mask, a random one, or itself;
  # the model is asked for the token in each case.
  mask_prob: float = 0.12
  random_prob: float = 0.015
  same_prob: float = 0.015
  # The mask.
  mask_token_id: int = -1

  def validate(self) -> None:
    """Raises ValueError unless there is a mask and probabilities make sense."""
    if not 0 <= self.mask_token_id < self.vocab_size:
      raise ValueError(
        'mask_token_id of mlm_augmenter must be in [0, vocab_size), got '
        f'{self.mask_token_id} with vocab_size {self.vocab_size}'
      )
    probs = (self.mask_prob, self.random_prob, self.same_prob)
    if min(probs) < 0 or not 0 < sum(probs) < 1:
      raise ValueError(
        'mask_prob, random_prob and same_prob of mlm_augmenter must not be '
        f'negative and their sum be in (0, 1), got {probs}'
      )

  def __call__(
    self, ids: Int32[np.ndarray, 'T'], random: np.random.Generator
  ) -> tuple[Int32[np.ndarray, 'T'], Float32[np.ndarray, 'T']]:
    """Returns the tokens, and 1 where one is to be predicted."""
    drawn = random.random(len(ids))
    tokens = random.integers(self.vocab_size, size=len(ids), dtype=np.int32)
    with_random = self.mask_prob + self.random_prob
    masked = np.where(drawn < with_random, tokens, ids)
    masked[drawn < self.mask_prob] = self.mask_token_id
    chosen = drawn < with_random + self.same_prob
    return masked.astype(np.int32), chosen.astype(np.float32)
