# SPDX-License-Identifier: Apache-2.0
"""Base of normalization layers."""

from __future__ import annotations

from jaxtyping import Array, Float

from praxis import base_layer
from praxis.base_layer import WeightHParams, WeightInit


class BaseNormalization(base_layer.BaseLayer):
  """Normalizes its input; base of all normalization layers."""

  # Last dimension of the input.
  dim: int = 0

  def setup(self) -> None:
    if self.dim <= 0:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs dim > 0, got {self.dim}; '
        'set it to the size of the last dimension'
      )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')

  def _create_vector(
    self, name: str, value: float, *, regularized: bool = False, rank: int = 1
  ) -> None:
    """Creates a variable of shape [dim] with all entries `value`.

    A `rank` above 1 adds leading dimensions of size 1 and replicates it.
    """
    skip = base_layer.WeightHParamsCollection.SKIP_LP_REGULARIZATION
    mapping = self.weight_split_dims_mapping.wt if rank == 1 else None
    self.create_variable(
      name,
      WeightHParams(
        shape=[1] * (rank - 1) + [self.dim],
        init=WeightInit.Constant(value),
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=mapping,
        collections=None if regularized else [skip],
      ),
    )


class IdentityNorm(BaseNormalization):
  """Returns its input."""

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    return inputs
