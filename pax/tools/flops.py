# SPDX-License-Identifier: Apache-2.0
"""Counts what a traced function computes, loops as often as they run."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

# Moves or names numbers and computes none.
_FREE = frozenset({
  'broadcast_in_dim', 'concatenate', 'convert_element_type', 'copy',
  'dynamic_slice', 'dynamic_update_slice', 'gather', 'iota',
  'optimization_barrier', 'pad',
  'random_bits', 'random_fold_in', 'random_seed', 'random_split',
  'random_unwrap', 'random_wrap', 'reshape', 'rev', 'scatter',
  'sharding_constraint', 'slice', 'split', 'squeeze', 'stop_gradient',
  'transpose',
})  # fmt: skip
_REDUCTIONS = ('reduce_', 'arg', 'cum')


def count(fn: Callable[..., Any], *args: Any) -> dict[str, int]:
  """FLOPs of `fn(*args)` by primitive, the largest first; nothing runs.

  A product of matrices of M x K and K x N counts 2MNK, a convolution twice its
  multiplications, everything else one per number that comes out, a reduction
  one per number that goes in. Of the branches of a condition the most expensive
  counts, of a loop without a known end one round.
  """
  return count_jaxpr(jax.make_jaxpr(fn)(*args).jaxpr)


def count_jaxpr(jaxpr: Any, *, loops_once: bool = False) -> dict[str, int]:
  """As `count`, of what is traced already.

  Args:
    jaxpr: of the whole program, before it is split over devices.
    loops_once: whether to count one round of each loop, as XLA does.
  """
  found = _count(jaxpr, loops_once)
  return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _count(jaxpr: Any, loops_once: bool) -> collections.Counter[str]:
  total: collections.Counter[str] = collections.Counter()
  for eqn in jaxpr.eqns:
    inner = list(_inner(eqn.params))
    if eqn.primitive.name == 'cond':
      total += max(
        (_count(j, loops_once) for j in inner), key=lambda c: c.total()
      )
    elif inner:
      is_loop = eqn.primitive.name == 'scan'
      times = 1 if loops_once and is_loop else _times(eqn)
      for called in inner:
        for name, flops in _count(called, loops_once).items():
          total[name] += times * flops
    else:
      total[eqn.primitive.name] += _flops(eqn)
  return +total


def _times(eqn: Any) -> int:
  """How often what a primitive calls runs: once per round, or per device."""
  if eqn.primitive.name == 'scan':
    return eqn.params['length']
  if eqn.primitive.name == 'shard_map':
    return eqn.params['mesh'].size
  return 1


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
  """The functions that a primitive calls; of a custom gradient the forward."""
  for name, value in params.items():
    if name in ('jvp_jaxpr_fun', 'fwd_jaxpr_thunk', 'bwd', 'cond_jaxpr'):
      continue
    for part in value if isinstance(value, list | tuple) else [value]:
      jaxpr = getattr(part, 'jaxpr', part)
      if hasattr(jaxpr, 'eqns'):
        yield jaxpr


def _flops(eqn: Any) -> int:
  name = eqn.primitive.name
  if name in _FREE:
    return 0
  size = sum(_size(v) for v in eqn.outvars)
  if name == 'dot_general':
    (contracted, _), _ = eqn.params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    return 2 * size * math.prod(shape[i] for i in contracted)
  if name == 'conv_general_dilated':
    kernel = eqn.invars[1].aval.shape
    out_features = eqn.params['dimension_numbers'].rhs_spec[0]
    return 2 * size * math.prod(kernel) // kernel[out_features]
  if name.startswith(_REDUCTIONS):
    return sum(_size(v) for v in eqn.invars)
  return size


def _size(variable: Any) -> int:
  return int(np.prod(getattr(variable.aval, 'shape', ()), dtype=np.int64))
