# SPDX-License-Identifier: Apache-2.0
"""Evaluates a jaxpr and records the largest magnitude of each float value.

`evaluate` traces the equations of a jaxpr again, inside calls, loops, branches
and shard_map, each with a reduction of its results. Compiled, it is one program
with the shardings, collectives and rematerialization of the original, so it
runs on any number of devices and processes and needs about the same memory.

`jax_debug_nans` fetches the results of every step and runs a failed one again
operation by operation, which needs the donated state and more memory.
`jax.experimental.checkify` reports the first NaN even if a mask discards it,
and not the inf that caused it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from praxis.py_utils import jaxprs

# Results contain exactly the values of the first operand.
MOVES = frozenset({
  'broadcast_in_dim', 'copy', 'copy_p', 'device_put', 'expand_dims', 'name',
  'optimization_barrier', 'reshape', 'rev', 'sharding_constraint', 'squeeze',
  'stop_gradient', 'transpose',
})  # fmt: skip
_REMAT = frozenset({'checkpoint', 'remat2'})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
  """Magnitudes of the values of one jaxpr; scans stack those of iterations."""

  # One per float result of the equations that are neither moves nor recorded
  # in `inner`, in order: NaN, inf, or the largest magnitude.
  results: Float[Array, '... n']
  # By the index of an equation: the records of its jaxprs.
  inner: dict[int, list[Record]]
  # Scans: of the slices of this iteration. While loops: of the carried values.
  inputs: Float[Array, '... n'] | None = None
  # 1 if a branch ran, or a while loop had an iteration; else 0.
  has_run: Float[Array, '...'] | None = None


def evaluate(
  closed: jex_core.ClosedJaxpr, args: Sequence[Any]
) -> tuple[list[Any], Record]:
  """Returns the results of a jaxpr and the magnitudes of its values."""
  jaxpr = closed.jaxpr
  env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
  env |= dict(zip(jaxpr.invars, args, strict=True))
  magnitudes, inner = [], {}

  def read(atom: Any) -> Any:
    return atom.val if isinstance(atom, jex_core.Literal) else env[atom]

  for i, eqn in enumerate(jaxpr.eqns):
    operands = [read(atom) for atom in eqn.invars]
    if rule := RULES.get(eqn.primitive.name):
      with eqn.ctx.manager:
        results, inner[i] = rule(eqn, operands)
    else:
      results = _run_equation(eqn, operands)
      if is_recorded(eqn):
        magnitudes += [magnitude(x) for x in float_values(results)]
    env |= zip(eqn.outvars, results, strict=True)
  return [read(atom) for atom in jaxpr.outvars], Record(
    _stack(magnitudes), inner
  )


def is_recorded(eqn: jex_core.JaxprEqn) -> bool:
  """Whether `Record.results` has the float results of an equation."""
  return eqn.primitive.name not in RULES and eqn.primitive.name not in MOVES


def is_float(value: Any) -> bool:
  """Whether an array or its type is of floating point, or complex."""
  dtype = getattr(value, 'dtype', None)
  return dtype is not None and (
    jnp.issubdtype(dtype, jnp.inexact)
    and not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
  )


def float_values(values: Sequence[Any]) -> list[Any]:
  """Returns the float arrays among values or types."""
  return [x for x in values if is_float(x)]


def magnitude(x: ArrayLike) -> Float[Array, '']:
  """Returns the largest magnitude in x: NaN if any is NaN, inf if any is."""
  x = jnp.asarray(x)
  if jnp.iscomplexobj(x):
    x = jnp.abs(x)
  if x.dtype == jnp.float64:
    # Beyond float32 it is still finite.
    limit = jnp.finfo(jnp.float32).max
    x = jnp.where(jnp.isfinite(x), jnp.clip(x, -limit, limit), x)
  return _from_bits(jnp.max(_to_bits(x.astype(jnp.float32)), initial=0))


def _to_bits(x: Float[Array, '...']) -> Int32[Array, '...']:
  """Returns |x| as integers in the order of the magnitudes, NaN the largest.

  Unlike those of floats, their maximum over devices does not lose NaN.
  """
  return jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF


def _from_bits(bits: Int32[Array, '...']) -> Float[Array, '...']:
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def closed_jaxprs(eqn: jex_core.JaxprEqn) -> list[jex_core.ClosedJaxpr]:
  """Returns the jaxprs that an equation runs, with their constants."""
  functions = []
  for jaxpr in jaxprs.sub_jaxprs(eqn):
    consts = next(
      (c.consts for c in _closed_params(eqn) if c.jaxpr is jaxpr), ()
    )
    functions.append(jex_core.ClosedJaxpr(jaxpr, consts))
  return functions


def _closed_params(eqn: jex_core.JaxprEqn) -> list[jex_core.ClosedJaxpr]:
  params = []
  for param in eqn.params.values():
    for value in param if isinstance(param, list | tuple) else [param]:
      if isinstance(value, jex_core.ClosedJaxpr):
        params.append(value)
  return params


def _stack(magnitudes: list[Float[Array, '']]) -> Float[Array, ' n']:
  return jnp.stack(magnitudes) if magnitudes else jnp.zeros(0, jnp.float32)


def _run_equation(eqn: jex_core.JaxprEqn, operands: list[Any]) -> list[Any]:
  """Returns the results of an equation that is not traced into."""
  params = eqn.primitive.get_bind_params(eqn.params)
  with eqn.ctx.manager:
    results = eqn.primitive.bind(*operands, **params)
  return list(results) if eqn.primitive.multiple_results else [results]


def _call(
  eqn: jex_core.JaxprEqn, operands: list[Any]
) -> tuple[list[Any], list[Record]]:
  (function,) = closed_jaxprs(eqn)
  operands = operands[len(operands) - len(function.jaxpr.invars) :]
  if eqn.primitive.name in _REMAT and eqn.params.get('prevent_cse', True):
    # Otherwise XLA merges the recomputation with the forward pass and keeps
    # the activations.
    operands = jax.lax.optimization_barrier(operands)
  results, record = evaluate(function, operands)
  return results, [record]


def _scan(
  eqn: jex_core.JaxprEqn, operands: list[Any]
) -> tuple[list[Any], list[Record]]:
  (body,) = closed_jaxprs(eqn)
  num_consts, num_carry = jaxprs.scan_num_consts_and_carry(eqn)
  consts = operands[:num_consts]
  carry = operands[num_consts : num_consts + num_carry]

  def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
    results, record = evaluate(body, [*consts, *carry, *slices])
    record.inputs = _stack([magnitude(x) for x in float_values(slices)])
    return results[:num_carry], (results[num_carry:], record)

  carry, (stacked, record) = jax.lax.scan(
    step,
    carry,
    operands[num_consts + num_carry :],
    length=eqn.params['length'],
    reverse=eqn.params['reverse'],
  )
  return [*carry, *stacked], [record]


def _while(
  eqn: jex_core.JaxprEqn, operands: list[Any]
) -> tuple[list[Any], list[Record]]:
  """Records the first iteration with NaN, else the first with inf."""
  params = eqn.params
  cond, body = params['cond_jaxpr'], params['body_jaxpr']
  num_cond, num_body = params['cond_nconsts'], params['body_nconsts']
  cond_consts = operands[:num_cond]
  body_consts = operands[num_cond : num_cond + num_body]
  init = operands[num_cond + num_body :]

  def is_running(state: Any) -> Any:
    (result,) = jex_core.jaxpr_as_fun(cond)(*cond_consts, *state[0])
    return result

  def iterate(carry: list[Any]) -> tuple[list[Any], Record]:
    inputs = _stack([magnitude(x) for x in float_values(carry)])
    results, record = evaluate(body, [*body_consts, *carry])
    record.inputs, record.has_run = inputs, jnp.float32(1.0)
    return results, record

  def step(state: tuple[list[Any], Record]) -> tuple[list[Any], Record]:
    carry, worst = state
    results, record = iterate(carry)
    is_worse = _severity(record) > _severity(worst)
    worst = jax.tree.map(
      lambda new, old: jnp.where(is_worse, new, old), record, worst
    )
    return results, worst

  zeros = _zeros(jax.eval_shape(iterate, init)[1])
  carry, record = jax.lax.while_loop(is_running, step, (init, zeros))
  return carry, [record]


def _severity(record: Record) -> Array:
  """Returns 3 with a NaN, 2 with an inf, 1 if all is finite, 0 before."""
  values, _ = ravel_pytree(record)
  worst = jnp.max(values, initial=0.0)
  finite = 0 if record.has_run is None else jnp.sign(record.has_run)
  return jnp.where(jnp.isnan(worst), 3, jnp.where(jnp.isinf(worst), 2, finite))


def _cond(
  eqn: jex_core.JaxprEqn, operands: list[Any]
) -> tuple[list[Any], list[Record]]:
  branches = eqn.params['branches']
  index, *operands = operands

  def run(branch: jex_core.ClosedJaxpr, args: list[Any]) -> Any:
    results, record = evaluate(branch, args)
    record.has_run = jnp.float32(1.0)
    return results, record

  zeros = [
    _zeros(jax.eval_shape(lambda *args, b=b: run(b, list(args))[1], *operands))
    for b in branches
  ]

  def make(i: int) -> Callable[..., Any]:
    def branch(*args: Any) -> tuple[list[Any], list[Record]]:
      results, record = run(branches[i], list(args))
      return results, [*zeros[:i], record, *zeros[i + 1 :]]

    return branch

  return jax.lax.switch(
    index, [make(i) for i in range(len(branches))], *operands
  )


def _zeros(shapes: Record) -> Record:
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _shard_map(
  eqn: jex_core.JaxprEqn, operands: list[Any]
) -> tuple[list[Any], list[Record]]:
  params = eqn.params
  (body,) = closed_jaxprs(eqn)
  axes = jaxprs.manual_axes(eqn)
  unravels: list[Callable[[Array], Record]] = []

  def run(*args: Any) -> tuple[list[Any], Array]:
    results, record = evaluate(body, args)
    values, unravel = ravel_pytree(record)
    unravels.append(unravel)
    return results, _from_bits(jax.lax.pmax(_to_bits(values), axes))

  results, values = jax.shard_map(
    run,
    mesh=params['mesh'],
    in_specs=tuple(params['in_specs']),
    out_specs=(list(params['out_specs']), jax.sharding.PartitionSpec()),
    axis_names=set(axes),
    check_vma=params['check_vma'],
  )(*operands)
  return results, [unravels[-1](values)]


# By primitive: (equation, operands) -> (results, records of its jaxprs).
RULES: dict[str, Callable[..., tuple[list[Any], list[Record]]]] = {
  **dict.fromkeys(jaxprs.CALLS, _call),
  'scan': _scan,
  'while': _while,
  'cond': _cond,
  'shard_map': _shard_map,
}
