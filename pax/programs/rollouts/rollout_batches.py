# SPDX-License-Identifier: Apache-2.0
"""Samples of a policy, and the batches that a policy learns from."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np
from jaxtyping import Bool, Float32, Int32

from praxis.nested_map import NestedMap

# Added to the standard deviation of the rewards of a prompt.
_EPSILON = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
  """Prompts with their responses, a row of tokens each."""

  ids: Int32[np.ndarray, 'B T']
  # Number of tokens of each prompt, and with its response.
  prompt_lengths: Int32[np.ndarray, ' B']
  lengths: Int32[np.ndarray, ' B']
  # The prompt of each row in the input.
  prompt_index: Int32[np.ndarray, ' B']

  @property
  def is_token(self) -> Bool[np.ndarray, 'B T']:
    """Whether a position has a token."""
    return np.arange(self.ids.shape[1]) < self.lengths[:, np.newaxis]

  @property
  def response_lengths(self) -> Int32[np.ndarray, ' B']:
    """Number of tokens of each response."""
    return self.lengths - self.prompt_lengths

  @property
  def last_ids(self) -> Int32[np.ndarray, ' B']:
    """The last token of each response."""
    return self.ids[np.arange(len(self.ids)), self.lengths - 1]

  def responses(self) -> Int32[np.ndarray, 'B T']:
    """Returns the responses, from the first column on."""
    columns = np.arange(self.ids.shape[1]) + self.prompt_lengths[:, np.newaxis]
    last = self.ids.shape[1] - 1
    return np.take_along_axis(self.ids, np.minimum(columns, last), axis=1)


def length_penalties(
  lengths: Int32[np.ndarray, ' B'], max_len: int, num_penalized: int
) -> Float32[np.ndarray, ' B']:
  """Returns rewards that fall from 0 to -1 over the last possible lengths.

  References:
    https://arxiv.org/abs/2503.14476, equation 13

  Args:
    lengths: Numbers of tokens of responses.
    max_len: That of the longest possible response.
    num_penalized: How many of its tokens have a penalty, 1 or more.
  """
  excess = (lengths - (max_len - num_penalized)) / num_penalized
  return -np.clip(excess, 0.0, 1.0).astype(np.float32)


def deviations(
  rewards: Float32[np.ndarray, ' B'], num_samples: int
) -> Float32[np.ndarray, ' P']:
  """Returns the standard deviation of the rewards of each prompt.

  Args:
    rewards: The rewards; those of a prompt are adjacent.
    num_samples: Number of samples of a prompt.
  """
  return rewards.reshape(-1, num_samples).std(axis=1, ddof=1)


def advantages(
  rewards: Float32[np.ndarray, ' B'],
  num_samples: int,
  divisors: Float32[np.ndarray, ' P'] | None,
) -> Float32[np.ndarray, ' B']:
  """Returns how much each reward is above the mean of its prompt.

  Args:
    rewards: The rewards; those of a prompt are adjacent.
    num_samples: Number of samples of a prompt.
    divisors: `deviations` of the rewards, to divide by; None: 1.
  """
  groups = rewards.reshape(-1, num_samples)
  centered = groups - groups.mean(axis=1, keepdims=True)
  if divisors is not None:
    centered /= divisors[:, np.newaxis] + _EPSILON
  return centered.reshape(-1)


def train_batch(
  samples: Samples, values: Float32[np.ndarray, ' B']
) -> NestedMap:
  """Returns the batch with the responses as labels.

  Args:
    samples: The samples.
    values: Their advantages.
  """
  # Most jobs do not need it.
  from pax.inputs.rows import packing

  num_rows, seq_len = samples.ids.shape
  batch = packing.empty_batch(num_rows, seq_len)
  is_token = samples.is_token
  batch.ids = np.where(is_token, samples.ids, 0)
  batch.labels[:, :-1] = batch.ids[:, 1:]
  batch.paddings = 1.0 - is_token.astype(np.float32)
  batch.segment_ids = is_token.astype(np.int32)
  positions = np.arange(seq_len, dtype=np.int32)
  batch.segment_pos = positions * batch.segment_ids
  is_response = positions + 1 >= samples.prompt_lengths[:, np.newaxis]
  batch.weights[:, :-1] = is_response[:, :-1] & is_token[:, 1:]
  batch.prompt_index = samples.prompt_index
  batch.advantages = values
  batch.eval_sample_weights = np.ones(num_rows, np.float32)
  return batch


def split(batch: NestedMap, num_batches: int) -> list[NestedMap]:
  """Returns batches of the adjacent rows of a batch, of equal sizes.

  Args:
    batch: The batch.
    num_batches: Number of batches; it divides the number of rows.
  """
  num_rows = len(batch.ids) // num_batches
  parts = [
    slice(start, start + num_rows)
    for start in range(0, len(batch.ids), num_rows)
  ]
  return [batch.Transform(operator.itemgetter(part)) for part in parts]
