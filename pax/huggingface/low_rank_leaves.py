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
from pax.huggingface.weight_layouts import WeightLayout


class LowRankFactors(NamedTuple):
  """The update scale * A B^T of a tensor, or of a part of it."""

  # Of inputs, [..., I, R], and outputs, [..., O, R].
  a: np.ndarray
  b: np.ndarray
  scale: float
  # The norms of the outputs of the updated weight, [..., O]; None: those of the
  # sum.
  magnitude: np.ndarray | None = None

  def add_to(self, weight: np.ndarray, layout: WeightLayout) -> np.ndarray:
    """Returns the updated weight, in float32.

    Args:
      weight: The weight in the layout of its variable.
      layout: Of the variable.
    """
    update = (self.scale * self.a) @ self.b.swapaxes(-1, -2)
    total = update + layout.to_matrices(weight, update.shape)
    if self.magnitude is not None:
      norms = output_norms(total)
      # Outputs without weights have no direction.
      gains = np.divide(
        self.magnitude, norms, out=np.ones_like(norms), where=norms > 0
      )
      total *= gains[..., None, :]
    return layout.from_matrices(total)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankLeaves:
  """Names of the leaves of an update."""

  weight: str
  a: str
  b: str
  scale: str
  # None: the update leaves the norms of outputs as they become.
  magnitude_delta: str | None

  @property
  def names(self) -> list[str]:
    """All but the weight."""
    names = (self.a, self.b, self.scale, self.magnitude_delta)
    return [name for name in names if name is not None]

  @property
  def needed(self) -> list[str]:
    """Those from which `factors` are computed."""
    return self.names + [self.weight] * (self.magnitude_delta is not None)

  def factors(
    self, variable: Variable, leaves: Mapping[str, np.ndarray]
  ) -> Iterator[LowRankFactors]:
    """Yields the factors of the update of each tensor.

    Args:
      variable: That of the weight.
      leaves: Values by name; see `needed`.
    """
    num_tensors = len(variable.tensors)

    def of_tensors(leaf: str) -> np.ndarray:
      x = np.asarray(leaves[leaf], np.float32)
      return x.reshape(num_tensors, *x.shape[len(variable.stack_shape) :])

    # All experts of a layer have one.
    scales = np.asarray(leaves[self.scale]).reshape(-1)
    scales = np.repeat(scales, num_tensors // scales.size)
    a, b = of_tensors(self.a), of_tensors(self.b)
    if self.magnitude_delta is None:
      yield from itertools.starmap(
        LowRankFactors, zip(a, b, scales, strict=True)
      )
      return
    deltas = of_tensors(self.magnitude_delta)
    weights = variable.unstack(np.asarray(leaves[self.weight]))
    for i, (_, layout, weight) in enumerate(weights):
      shape = (*a[i].shape[:-1], b[i].shape[-2])
      norms = output_norms(layout.to_matrices(weight, shape))
      yield LowRankFactors(a[i], b[i], scales[i], norms + deltas[i])


def find(saved: Iterable[str]) -> dict[str, LowRankLeaves]:
  """Returns the leaves of the updates by the leaves of their weights.

  Args:
    saved: Names of leaves of a checkpoint.
  """
  saved = set(saved)
  updates = {}
  for leaf in sorted(saved):
    if (weight := low_rank_updates.weight_of(leaf)) is not None:
      layer, _, _ = weight.rpartition('.')
      layer = layer.replace('.params.', '.non_trainable.', 1)
      delta = leaf.removesuffix('lora_a') + low_rank_updates.MAGNITUDE_DELTA
      updates[weight] = LowRankLeaves(
        weight=weight,
        a=leaf,
        b=f'{leaf[:-1]}b',
        scale=f'{layer}.lora_scale',
        magnitude_delta=delta if delta in saved else None,
      )
  return updates


def output_norms(matrices: np.ndarray) -> np.ndarray:
  """Returns the norms [..., O] over the inputs of matrices [..., I, O]."""
  return np.linalg.norm(matrices.astype(np.float32), axis=-2)
