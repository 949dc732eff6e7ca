# SPDX-License-Identifier: Apache-2.0
"""Gradient statistics of Shampoo, and their roots, the preconditioners."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers.shampoo import grafting, inverse_roots, quantized_storage
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams
from praxis.optimizers.shampoo.matrix_layout import (
  MatrixLayout,
  axis_names,
  axis_size,
  dividing_axes,
)
from praxis.pytypes import JTensor

# The matrices of each group.
Groups = dict[str, Float[Array, 'K N N']]
_tensordot = functools.partial(
  jnp.tensordot, precision=jax.lax.Precision.HIGHEST
)


def identities(layout: MatrixLayout, scale: float) -> Groups:
  """Returns `scale` times the identity for every matrix."""
  return {
    key: jnp.broadcast_to(scale * jnp.eye(size), (n, size, size))
    for key, (n, size, _) in layout.groups.items()
  }


def identity_preconditioners(
  hyperparams: ShampooHyperparams, layout: MatrixLayout
) -> Groups:
  """Returns preconditioners that do not change the gradient."""
  preconditioners = identities(layout, 1.0)
  for key, (n, size, _) in layout.groups.items():
    if hyperparams.is_compressed(size):
      empty = jnp.zeros([n, size, hyperparams.compression_rank + 1])
      preconditioners[key] = empty.at[:, 0, -1].set(1.0)
  return preconditioners


def store(groups: Groups, hyperparams: ShampooHyperparams) -> NestedMap:
  """Stores the matrices in their storage dtype."""

  def stored(x: Float[Array, 'K N M']) -> quantized_storage.Stored:
    is_square = x.shape[1] == x.shape[2]
    if not is_square:
      return quantized_storage.store(x, 'float32')
    return quantized_storage.store_matrices(x, hyperparams.matrix_dtype)

  return NestedMap({key: stored(x) for key, x in groups.items()})


def load(stored: NestedMap) -> Groups:
  """Returns stored matrices as float32."""
  return {key: quantized_storage.load(x) for key, x in stored.items()}


def gather(
  layout: MatrixLayout, groups: Groups, variable: int
) -> list[JTensor]:
  """Returns the matrices of a variable, by block and dimension."""
  return [groups[key][index] for key, index in layout.indices[variable]]


def updated_statistics(
  hyperparams: ShampooHyperparams,
  layout: MatrixLayout,
  old: Groups,
  grads: Sequence[JTensor],
) -> Groups:
  """Returns beta2 S + (1 - beta2) G Gᵀ for each dimension of each block.

  G is the block as a matrix with that dimension first. If beta2 is 1, the
  products are summed.

  Args:
    hyperparams: the hyperparameters.
    layout: the layout of the matrices.
    old: the previous statistics.
    grads: the gradients.

  References:
    Gupta et al., algorithms 1 and 2, https://arxiv.org/abs/1802.09568
  """
  group_products: dict[str, list[JTensor]] = {key: [] for key in layout.groups}
  for indices, partition, grad in zip(
    layout.indices, layout.partitions, grads, strict=True
  ):
    products = [] if partition is None else _products(partition.split(grad))
    for (key, _), product in zip(indices, products, strict=True):
      group_products[key].append(product)
  keep, add = grafting.ema_weights(hyperparams.beta2)
  new = {}
  for key, (n, size, _) in layout.groups.items():
    # Matrices that pad a group stay the identity.
    products = group_products[key]
    padding = [jnp.eye(size)] * (n - len(products))
    new[key] = keep * old[key] + add * jnp.stack([*products, *padding])
  return new


def updated_preconditioners(
  hyperparams: ShampooHyperparams,
  layout: MatrixLayout,
  statistics: Groups,
  old: Groups,
) -> tuple[Groups, dict[str, Float[Array, ' K']]]:
  """Returns (inverse roots, errors); failed roots keep their old values.

  Args:
    hyperparams: the hyperparameters.
    layout: the layout of the matrices.
    statistics: the statistics.
    old: the previous preconditioners.
  """
  new, errors = {}, {}
  for key, (_, size, power) in layout.groups.items():
    root = functools.partial(
      _root_fn(hyperparams, size),
      power=power,
      ridge=hyperparams.matrix_epsilon,
      relative=hyperparams.relative_matrix_epsilon,
    )
    value, error = _distribute(hyperparams, jax.vmap(root), statistics[key])
    is_valid = error < hyperparams.inverse_failure_threshold  # False for NaN.
    new[key] = jnp.where(is_valid[:, None, None], value, old[key])
    errors[key] = error
  return new, errors


def precondition(
  layout: MatrixLayout, preconditioners: Groups, variable: int, grad: JTensor
) -> JTensor | None:
  """Multiplies the gradient of a variable by its preconditioners, if any.

  Args:
    layout: the layout of the matrices.
    preconditioners: the matrices.
    variable: the index of the variable.
    grad: its gradient.
  """
  partition = layout.partitions[variable]
  if partition is None:
    return None
  matrices = iter(gather(layout, preconditioners, variable))
  blocks = []
  for block in partition.split(grad):
    for _ in range(block.ndim):
      # Moves the first dimension to the end: the order is restored at last.
      block = _multiply(block, next(matrices))
    blocks.append(block)
  return partition.join(blocks)


def _multiply(
  block: JTensor, matrix: Float[Array, 'N M']
) -> Float[Array, '...']:
  """Contracts the first dimension with a matrix; the result comes last."""
  size, width = matrix.shape
  if width == size:
    return _tensordot(block, matrix, axes=[[0], [0]])
  # Compressed: constant * I - U Uᵀ.
  u, constant = matrix[:, :-1], matrix[0, -1]
  projection = _tensordot(block, u, axes=[[0], [0]])
  low_rank = _tensordot(projection, u, axes=[[-1], [1]])
  return constant * jnp.moveaxis(block, 0, -1) - low_rank


def _root_fn(
  hyperparams: ShampooHyperparams, size: int
) -> Callable[..., inverse_roots.Root]:
  if hyperparams.is_compressed(size):
    return functools.partial(
      inverse_roots.compressed_root, rank=hyperparams.compression_rank
    )
  if hyperparams.eigh:
    return inverse_roots.eigh_root
  if not hyperparams.lobpcg_topk_precondition:
    return inverse_roots.newton_root
  return functools.partial(
    inverse_roots.deflated_newton_root,
    largest=hyperparams.lobpcg_topk_precondition,
    iterations=hyperparams.lobpcg_max_iter
    or hyperparams.lobpcg_topk_precondition,
  )


def _products(blocks: Sequence[JTensor]) -> list[Float[Array, 'N N']]:
  products = []
  for block in blocks:
    for axis in range(block.ndim):
      others = [i for i in range(block.ndim) if i != axis]
      products.append(_tensordot(block, block, axes=(others, others)))
  return products


def _distribute(
  hyperparams: ShampooHyperparams,
  compute_roots: Callable[[Float[Array, 'K N N']], inverse_roots.Root],
  x: Float[Array, 'K N N'],
) -> inverse_roots.Root:
  """Computes the roots of a group, distributed over the devices."""
  if hyperparams.sharded:
    shard = functools.partial(
      base_layer.maybe_shard, mesh_axis_names=hyperparams.mesh_axis_names
    )
    root_axis = axis_names(hyperparams, hyperparams.root_mapping)[0]
    padded = _pad(x, axis_size(hyperparams, root_axis))
    during_roots = dividing_axes(
      hyperparams, hyperparams.root_mapping, padded.shape
    )
    value, error = compute_roots(shard(padded, during_roots))
    stored = dividing_axes(hyperparams, hyperparams.mapping, x.shape)
    num_matrices = x.shape[0]
    value = shard(value, during_roots)[:num_matrices]
    return inverse_roots.Root(shard(value, stored), error[:num_matrices])
  if not base_layer.is_running_under_pmap():
    return compute_roots(x)
  axis = base_layer.PMAP_PARALLEL_AXIS_NAME
  padded = _pad(x, jax.lax.axis_size(axis))
  per_device = padded.shape[0] // jax.lax.axis_size(axis)
  local = jax.lax.dynamic_slice_in_dim(
    padded, jax.lax.axis_index(axis) * per_device, per_device
  )
  roots = jax.lax.all_gather(compute_roots(local), axis, tiled=True)
  return jax.tree.map(lambda y: y[: x.shape[0]], roots)


def _pad(x: Float[Array, 'K N N'], multiple_of: int) -> Float[Array, 'L N N']:
  """Appends identities up to a multiple of matrices."""
  num_padding = -x.shape[0] % multiple_of
  padding = jnp.broadcast_to(jnp.eye(x.shape[1]), (num_padding, *x.shape[1:]))
  return jnp.concatenate([x, padding])
