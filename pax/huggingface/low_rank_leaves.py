# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of weights in checkpoints.

Layers of `praxis.layers.low_rank_adaptation` have them as variables.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pax.checkpoints import low_rank_updates
from pax.huggingface.stacked_variables import Variable


class LowRankFactors(NamedTuple):
  """The update scale * A B^T of a tensor, or of a part of it."""

  # Of inputs, [..., I, R], and outputs, [..., O, R].
  a: np.ndarray
  b: np.ndarray
  scale: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankLeaves:
  """Names of the leaves of an update."""

  a: str
  b: str
  scale: str

  def factors(
    self, variable: Variable, leaves: Mapping[str, np.ndarray]
  ) -> Iterator[LowRankFactors]:
    """Yields the factors of the update of each tensor.

    Args:
      variable: That of the weight.
      leaves: Values by name.
    """
    num_tensors = len(variable.tensors)

    def of_tensors(leaf: str) -> np.ndarray:
      x = np.asarray(leaves[leaf], np.float32)
      return x.reshape(num_tensors, *x.shape[len(variable.stack_shape) :])

    # All experts of a layer have one.
    scales = np.asarray(leaves[self.scale]).reshape(-1)
    scales = np.repeat(scales, num_tensors // scales.size)
    of_all = zip(of_tensors(self.a), of_tensors(self.b), scales, strict=True)
    yield from itertools.starmap(LowRankFactors, of_all)


def find(saved: Iterable[str]) -> dict[str, LowRankLeaves]:
  """Returns the leaves of the updates by the leaves of their weights.

  Args:
    saved: Names of leaves of a checkpoint.
  """
  updates = {}
  for leaf in saved:
    if (weight := low_rank_updates.weight_of(leaf)) is not None:
      layer, _, _ = weight.rpartition('.')
      layer = layer.replace('.params.', '.non_trainable.', 1)
      updates[weight] = LowRankLeaves(
        a=leaf, b=f'{leaf[:-1]}b', scale=f'{layer}.lora_scale'
      )
  return updates
