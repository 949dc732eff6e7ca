# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a traced function, with loops counted by their trip count."""

from __future__ import annotations

import collections
import fractions
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from praxis import py_utils
from praxis.layers.moe import routed_rows
from praxis.py_utils import jaxprs

# Primitives that move or convert data.
_FREE = frozenset({
  'broadcast_in_dim', 'concatenate', 'convert_element_type', 'copy',
  'dynamic_slice', 'dynamic_update_slice', 'empty', 'gather', 'iota',
  'optimization_barrier', 'pad', 'platform_index',
  'random_bits', 'random_fold_in', 'random_seed', 'random_split',
  'random_unwrap', 'random_wrap', 'reshape', 'rev', 'scatter',
  'sharding_constraint', 'slice', 'split', 'squeeze', 'stop_gradient',
  'transpose',
})  # fmt: skip
_REDUCTIONS = ('reduce_', 'arg', 'cum')
_ALL = fractions.Fraction(1)


def count(fn: Callable[..., Any], *args: Any) -> dict[str, int]:
  """Returns the FLOPs of `fn(*args)` by primitive, the largest first.

  A matrix product of M x K and K x N is 2MNK, also if its rows are of several
  groups (`ragged_dot`); rows without a group do not count if its name has the
  share of the others (`routed_rows`). A convolution is twice its
  multiplications, except those by the zeros of a dilated input; a reduction one
  per input element, any other primitive one per output element. A condition
  counts its most expensive branch, a loop of unknown trip count one iteration,
  a Pallas kernel every point of its grid. The products of a kernel with such
  loops, or with a grid that is known at run time only, count its own estimate.
  Of `jax.lax.platform_dependent` the branch of the default platform counts.
  Equations that no result depends on count nothing. Nothing runs.
  """
  jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
  platform = jax.default_backend()
  return count_jaxpr(jaxprs.select_platform(jaxpr, platform))


def count_jaxpr(jaxpr: Any, *, loops_once: bool = False) -> dict[str, int]:
  """Returns the FLOPs of a jaxpr, as `count` does.

  Args:
    jaxpr: the program before it is partitioned over devices, with the branches
      of one platform (`jaxprs.select_platform`).
    loops_once: whether to count one iteration of each loop, as XLA's cost
      analysis does.
  """
  counts = _count(jaxpr, loops_once)
  return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def pallas_kernels(jaxpr: Any) -> dict[str, int]:
  """Returns the FLOPs of one call of each Pallas kernel, by its name or ''.

  Of several kernels of a name the most expensive counts. Blocks that a kernel
  skips at run time count too.
  """
  kernels: dict[str, int] = {}
  for eqn in jaxpr.eqns:
    inner = list(py_utils.sub_jaxprs(eqn))
    if eqn.primitive.name == 'pallas_call':
      flops = _estimate(eqn)
      if flops is None:
        flops = _trip_count(eqn) * sum(_count(j, False).total() for j in inner)
      counts = [{eqn.params['name'] or '': flops}]
    else:
      counts = [pallas_kernels(each) for each in inner]
    for by_name in counts:
      for name, flops in by_name.items():
        kernels[name] = max(kernels.get(name, 0), flops)
  return kernels


def _count(
  jaxpr: Any, loops_once: bool, share: fractions.Fraction = _ALL
) -> collections.Counter[str]:
  """Returns the FLOPs of a jaxpr by primitive.

  Args:
    jaxpr: the jaxpr.
    loops_once: see `count_jaxpr`.
    share: that of the rows of grouped products which count.
  """
  total: collections.Counter[str] = collections.Counter()
  for eqn in jaxprs.live_equations(jaxpr.eqns, jaxpr.outvars):
    # Names within a function are relative to its call.
    routed = share * routed_rows.share_of(str(eqn.source_info.name_stack))
    if not routed:
      continue
    inner = list(py_utils.sub_jaxprs(eqn))
    if eqn.primitive.name == 'cond':
      branches = (_count(j, loops_once, routed) for j in inner)
      most = max(branches, key=lambda counts: counts.total())
      total += most
    elif (flops := _estimate(eqn)) is not None:
      total['dot_general'] += int(routed * flops)
    elif inner:
      is_loop = eqn.primitive.name == 'scan'
      trip_count = 1 if loops_once and is_loop else _trip_count(eqn)
      for called in inner:
        for name, flops in _count(called, loops_once, routed).items():
          total[name] += trip_count * flops
    elif eqn.primitive.name == 'ragged_dot_general':
      total[eqn.primitive.name] += int(routed * _flops(eqn))
    else:
      total[eqn.primitive.name] += _flops(eqn)
  return +total


def _estimate(eqn: Any) -> int | None:
  """Returns the FLOPs that a Pallas kernel declares for products in loops.

  None for loops whose trip counts are known, and without an estimate.
  """
  if eqn.primitive.name != 'pallas_call' or not _contains(eqn, 'dot_general'):
    return None
  grid = eqn.params['grid_mapping'].grid
  has_known_grid = all(isinstance(n, int) for n in grid)
  if has_known_grid and not _contains(eqn, 'while'):
    return None
  estimate = eqn.params['cost_estimate']
  return estimate and estimate.flops


def _contains(eqn: Any, primitive: str) -> bool:
  return eqn.primitive.name == primitive or any(
    _contains(each, primitive)
    for j in py_utils.sub_jaxprs(eqn)
    for each in j.eqns
  )


def _trip_count(eqn: Any) -> int:
  """How often the inner jaxprs run: per iteration, device or grid point."""
  if eqn.primitive.name == 'scan':
    return eqn.params['length']
  if eqn.primitive.name == 'shard_map':
    return math.prod(
      eqn.params['mesh'].shape[axis] for axis in jaxprs.manual_axes(eqn)
    )
  if eqn.primitive.name == 'pallas_call':
    grid = eqn.params['grid_mapping'].grid
    return math.prod(n for n in grid if isinstance(n, int))
  return 1


def _flops(eqn: Any) -> int:
  name = eqn.primitive.name
  if name in _FREE:
    return 0
  size = sum(_size(v) for v in eqn.outvars)
  if name == 'dot_general':
    (contracted, _), _ = eqn.params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    return 2 * size * math.prod(shape[i] for i in contracted)
  if name == 'ragged_dot_general':
    return _ragged_dot_flops(eqn, size)
  if name == 'conv_general_dilated':
    kernel = eqn.invars[1].aval.shape
    out_features = eqn.params['dimension_numbers'].rhs_spec[0]
    dilation = math.prod(eqn.params['lhs_dilation'])
    return 2 * size * math.prod(kernel) // kernel[out_features] // dilation
  if name.startswith(_REDUCTIONS):
    return sum(_size(v) for v in eqn.invars)
  return size


def _ragged_dot_flops(eqn: Any, result_size: int) -> int:
  """Returns the FLOPs of a product whose groups together have all rows."""
  numbers = eqn.params['ragged_dot_dimension_numbers']
  (contracted, _), _ = numbers.dot_dimension_numbers
  lhs, _, group_sizes = (v.aval.shape for v in eqn.invars)
  flops = 2 * result_size * math.prod(lhs[i] for i in contracted)
  if set(contracted) & set(numbers.lhs_ragged_dimensions):
    # Each group has a result, the sum over its rows.
    return flops // group_sizes[-1]
  return flops


def _size(variable: Any) -> int:
  return int(np.prod(getattr(variable.aval, 'shape', ()), dtype=np.int64))
