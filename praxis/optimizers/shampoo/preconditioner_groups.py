# SPDX-License-Identifier: Apache-2.0
"""Statistics of gradients, and the preconditioners that are their roots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers.shampoo import grafting, inverse_roots, quantized_storage
from praxis.optimizers.shampoo.hyperparams import Plan, ShampooRule, fitting
from praxis.pytypes import JTensor

# Of each group, its matrices.
Groups = dict[str, Float[Array, 'K N N']]
_tensordot = functools.partial(
  jnp.tensordot, precision=jax.lax.Precision.HIGHEST
)


def identities(plan: Plan, scale: float) -> Groups:
  """Returns `scale` times the identity for every matrix."""
  return {
    key: jnp.broadcast_to(scale * jnp.eye(size), (n, size, size))
    for key, (n, size, _) in plan.groups.items()
  }


def first_preconditioners(rule: ShampooRule, plan: Plan) -> Groups:
  """Returns preconditioners that change nothing."""
  found = identities(plan, 1.0)
  for key, (n, size, _) in plan.groups.items():
    if rule.is_compressed(size):
      empty = jnp.zeros([n, size, rule.compression_rank + 1])
      found[key] = empty.at[:, 0, -1].set(1.0)
  return found


def store(groups: Groups, rule: ShampooRule) -> NestedMap:
  """Returns the matrices as they are kept."""

  def stored(x: Float[Array, 'K N M']) -> quantized_storage.Stored:
    is_square = x.shape[1] == x.shape[2]
    if not is_square:
      return quantized_storage.store(x, 'float32')
    return quantized_storage.store_matrices(x, rule.matrix_dtype)

  return NestedMap({key: stored(x) for key, x in groups.items()})


def load(stored: NestedMap) -> Groups:
  """Returns kept matrices as float32."""
  return {key: quantized_storage.load(x) for key, x in stored.items()}


def gather(plan: Plan, groups: Groups, variable: int) -> list[JTensor]:
  """Returns the entries that belong to a variable, in order."""
  return [groups[key][index] for key, index in plan.places[variable]]


def updated_statistics(
  rule: ShampooRule, plan: Plan, old: Groups, grads: Sequence[JTensor]
) -> Groups:
  """Returns beta2 S + (1 - beta2) G Gᵀ, G a block with one dimension first.

  With a beta2 of 1 the products add up.
  """
  found: dict[str, list[JTensor]] = {key: [] for key in plan.groups}
  for places, cut, grad in zip(plan.places, plan.cuts, grads, strict=True):
    products = [] if cut is None else _products(cut.split(grad))
    for (key, _), product in zip(places, products, strict=True):
      found[key].append(product)
  keep, add = grafting.ema_weights(rule.beta2)
  new = {}
  for key, (n, size, _) in plan.groups.items():
    # What rounds a group up stays the identity.
    found[key] += [jnp.eye(size)] * (n - len(found[key]))
    new[key] = keep * old[key] + add * jnp.stack(found[key])
  return new


def updated_preconditioners(
  rule: ShampooRule, plan: Plan, statistics: Groups, old: Groups
) -> tuple[Groups, dict[str, Float[Array, ' K']]]:
  """Returns (the inverse roots, their errors); a bad root stays the old one."""
  new, errors = {}, {}
  for key, (_, size, power) in plan.groups.items():
    root = functools.partial(
      _root_of(rule, size),
      power=power,
      ridge=rule.matrix_epsilon,
      relative=rule.relative_matrix_epsilon,
    )
    value, error = _distribute(rule, jax.vmap(root), statistics[key])
    good = error < rule.inverse_failure_threshold  # False for NaN.
    new[key] = jnp.where(good[:, None, None], value, old[key])
    errors[key] = error
  return new, errors


def precondition(
  plan: Plan, preconditioners: Groups, variable: int, grad: JTensor
) -> JTensor:
  """Returns the gradient of a variable, multiplied along each dimension."""
  cut = plan.cuts[variable]
  mine = iter(gather(plan, preconditioners, variable))
  done = []
  for block in cut.split(grad):
    for _ in range(block.ndim):
      # Takes the first dimension and appends it: after all, they are in order.
      block = _multiplied(block, next(mine))
    done.append(block)
  return cut.join(done)


def _multiplied(
  block: JTensor, matrix: Float[Array, 'N M']
) -> Float[Array, '...']:
  """Returns the product with the first dimension, which comes last."""
  size, width = matrix.shape
  if width == size:
    return _tensordot(block, matrix, axes=[[0], [0]])
  low, constant = matrix[:, :-1], matrix[0, -1]
  along = _tensordot(block, low, axes=[[0], [0]])
  removed = _tensordot(along, low, axes=[[-1], [1]])
  return constant * jnp.moveaxis(block, 0, -1) - removed


def _root_of(rule: ShampooRule, size: int) -> Callable[..., inverse_roots.Root]:
  if rule.is_compressed(size):
    return functools.partial(
      inverse_roots.compressed_root, rank=rule.compression_rank
    )
  if rule.eigh:
    return inverse_roots.eigh_root
  if not rule.lobpcg_topk_precondition:
    return inverse_roots.newton_root
  return functools.partial(
    inverse_roots.deflated_newton_root,
    largest=rule.lobpcg_topk_precondition,
    iterations=rule.lobpcg_max_iter or rule.lobpcg_topk_precondition,
  )


def _products(blocks: Sequence[JTensor]) -> list[Float[Array, 'N N']]:
  products = []
  for block in blocks:
    for axis in range(block.ndim):
      others = [i for i in range(block.ndim) if i != axis]
      products.append(_tensordot(block, block, axes=(others, others)))
  return products


def _distribute(
  rule: ShampooRule,
  take_roots: Callable[[Float[Array, 'K N N']], inverse_roots.Root],
  x: Float[Array, 'K N N'],
) -> inverse_roots.Root:
  """Returns the roots of a group, each device having taken some of them."""
  if rule.sharded:
    shard = functools.partial(
      base_layer.maybe_shard, mesh_axis_names=rule.mesh_axis_names
    )
    while_rooted = fitting(rule, rule.root_mapping, x.shape)
    value, error = take_roots(shard(x, while_rooted))
    kept = fitting(rule, rule.mapping, x.shape)
    return inverse_roots.Root(shard(shard(value, while_rooted), kept), error)
  if not base_layer.is_running_under_pmap():
    return take_roots(x)
  axis = base_layer.PMAP_PARALLEL_AXIS_NAME
  share = -(-x.shape[0] // jax.lax.axis_size(axis))
  missing = share * jax.lax.axis_size(axis) - x.shape[0]
  fill = jnp.broadcast_to(jnp.eye(x.shape[1]), (missing, *x.shape[1:]))
  mine = jax.lax.dynamic_slice_in_dim(
    jnp.concatenate([x, fill]), jax.lax.axis_index(axis) * share, share
  )
  every = jax.lax.all_gather(take_roots(mine), axis, tiled=True)
  return jax.tree.map(lambda y: y[: x.shape[0]], every)
