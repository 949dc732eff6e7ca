# SPDX-License-Identifier: Apache-2.0
"""Finds the equation of a jaxpr that produced the first NaN or inf.

NaN and inf are followed from where they appear to the results: a NaN that a
mask discards is not reported. A NaN that comes from an inf, such as inf - inf,
has that inf as its cause.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import flax
import jax
import numpy as np
from jax.extend import core as jex_core

from pax.learners import clipping
from pax.steps import value_magnitudes
from pax.steps.value_magnitudes import Record
from praxis.py_utils import jaxprs

_BACKWARD = 'transpose('
_TRANSFORMATION = re.compile(r'\b[a-z_]+\(|\)')
# Praxis wraps the methods of a layer in scopes such as `ff_layer._run`.
_METHOD = re.compile(r'\w+\.\w+')
_LIBRARIES = (*jax.__path__, *flax.__path__)


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where a NaN or inf appears although the operands have none."""

  # Position in the order of execution.
  order: int
  # 'NaN' or 'inf'.
  kind: str = ''
  # Names of the enclosing modules, and of the functions of JAX in them.
  scope: str = ''
  is_backward: bool = False
  # The primitive and the type of its result; the name and type of an argument
  # of the step.
  operation: str = ''
  value_type: str = ''
  # Type and largest magnitude of each float operand.
  operands: tuple[str, ...] = ()
  # FILE:LINE in FUNCTION, '' if unknown.
  source: str = ''
  # Iterations of the enclosing loops, such as '3 of 12'.
  iterations: tuple[str, ...] = ()
  # Whether it is computed from constants only, or a constant operand, such as
  # that of a mask, brings it in.
  is_constant: bool = False
  is_masking: bool = False
  # For a NaN: the origin of the infinite operand that caused it.
  cause: Origin | None = None

  def __str__(self) -> str:
    direction = 'backward' if self.is_backward else 'forward'
    parts = [f'{self.kind} in {self.scope or "the step"} ({direction} pass)']
    parts[0] += f': {self.operation} -> {self.value_type}'
    if self.iterations:
      parts.append(f'iteration {", ".join(self.iterations)}')
    if self.operands:
      parts.append(f'operands {", ".join(self.operands)}')
    if self.source:
      parts.append(f'at {self.source}')
    text = ', '.join(parts)
    return f'{self.cause}; it becomes {text}' if self.cause else text


@dataclasses.dataclass(frozen=True)
class Value:
  """A value of the jaxpr: its magnitude, and the origins of its NaN and inf."""

  # The largest magnitude; None if it is finite and not known.
  magnitude: float | None = None
  nan: Origin | None = None
  inf: Origin | None = None
  is_constant: bool = False


def argument(name: str, aval: Any, magnitude: float, order: int) -> Value:
  """Returns the value of an argument of the step.

  Args:
    name: Its name, such as `variable params/lm/w`.
    aval: Its type.
    magnitude: Its largest magnitude, NaN or inf.
    order: Position among the arguments, negative.
  """
  if math.isfinite(magnitude):
    return Value(magnitude)
  kind = _kind(magnitude)
  origin = Origin(
    order=order,
    kind=kind,
    scope=f'argument {name}',
    operation=name,
    value_type=_type(aval),
  )
  nan, inf = (origin, None) if kind == 'NaN' else (None, origin)
  return Value(magnitude, nan, inf)


def find(
  closed: jex_core.ClosedJaxpr, record: Record, arguments: Sequence[Value]
) -> Origin | None:
  """Returns the origin of the first NaN, else inf, in results and checks.

  Args:
    closed: The jaxpr of the step.
    record: The magnitudes of `value_magnitudes.evaluate`, as numpy arrays.
    arguments: The arguments.
  """
  search = _Search()
  results = search.run(closed, record, arguments, _Location())
  values = [*search.checked, *results]
  for kind in ('nan', 'inf'):
    origins = [getattr(v, kind) for v in values if getattr(v, kind)]
    if origins:
      return min(origins, key=lambda origin: origin.order)
  return None


@dataclasses.dataclass(frozen=True)
class _Location:
  """The calls and loops around a jaxpr."""

  scope: str = ''
  iterations: tuple[str, ...] = ()
  source: str = ''


class _Search:
  """Follows NaN and inf through the equations in the order of execution."""

  def __init__(self):
    self._order = itertools.count()
    # Operands of the checks that decide whether a step is skipped.
    self.checked: list[Value] = []

  def run(
    self,
    closed: jex_core.ClosedJaxpr,
    record: Record,
    arguments: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    """Returns the results of a jaxpr."""
    jaxpr = closed.jaxpr
    if _is_finite(record, arguments):
      return [Value() for _ in jaxpr.outvars]
    consts = [_constant(x) for x in closed.consts]
    env = dict(zip(jaxpr.constvars, consts, strict=True))
    env |= dict(zip(jaxpr.invars, arguments, strict=True))
    magnitudes = iter(np.asarray(record.results))
    for i, eqn in enumerate(jaxpr.eqns):
      operands = [
        _constant(atom.val) if isinstance(atom, jex_core.Literal) else env[atom]
        for atom in eqn.invars
      ]
      inner = _enter(location, eqn)
      if rule := _RULES.get(eqn.primitive.name):
        results = rule(self, eqn, record.inner[i], operands, inner)
      else:
        results = self._leaf(eqn, magnitudes, operands, inner)
      env |= zip(eqn.outvars, results, strict=True)
    return [
      _constant(atom.val) if isinstance(atom, jex_core.Literal) else env[atom]
      for atom in jaxpr.outvars
    ]

  def _leaf(
    self,
    eqn: jex_core.JaxprEqn,
    magnitudes: Iterator[Any],
    operands: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    if (
      eqn.primitive.name == 'is_finite'
      and clipping.CHECK_SCOPE in location.scope
    ):
      self.checked += operands
    if not value_magnitudes.is_recorded(eqn):
      return [*operands, *[Value()] * len(eqn.outvars)][: len(eqn.outvars)]
    results = []
    for var in eqn.outvars:
      is_float = value_magnitudes.is_float(var.aval)
      size = float(next(magnitudes)) if is_float else 0.0
      results.append(self._result(eqn, var.aval, size, operands, location))
    return results

  def _result(
    self,
    eqn: jex_core.JaxprEqn,
    aval: Any,
    magnitude: float,
    operands: Sequence[Value],
    location: _Location,
  ) -> Value:
    is_constant = all(v.is_constant for v in operands)
    if math.isfinite(magnitude):
      return Value(magnitude, is_constant=is_constant)
    nan, inf = (_first(getattr(v, k) for v in operands) for k in ('nan', 'inf'))
    kind = _kind(magnitude)
    inherited = nan if kind == 'NaN' else inf
    if inherited is None or (inherited.is_constant and not is_constant):
      # A constant becomes part of a value that is computed from others: this
      # equation is its origin.
      is_real_inf = inf and not (inf.is_constant or inf.is_masking)
      inherited = dataclasses.replace(
        self._origin(eqn, operands, location),
        kind=kind,
        value_type=_type(aval),
        is_constant=is_constant,
        is_masking=inherited is not None,
        cause=inf if kind == 'NaN' and is_real_inf else None,
      )
    if kind == 'NaN':
      return Value(magnitude, inherited, inf, is_constant)
    return Value(magnitude, None, inherited, is_constant)

  def _origin(
    self,
    eqn: jex_core.JaxprEqn,
    operands: Sequence[Value],
    location: _Location,
  ) -> Origin:
    types = [
      _operand_text(atom.aval, v.magnitude)
      for atom, v in zip(eqn.invars, operands, strict=True)
      if value_magnitudes.is_float(atom.aval)
    ]
    return Origin(
      order=next(self._order),
      scope=_readable(location.scope),
      is_backward=_BACKWARD in location.scope,
      operation=eqn.primitive.name,
      operands=tuple(types),
      source=location.source,
      iterations=location.iterations,
    )

  def call(
    self,
    eqn: jex_core.JaxprEqn,
    records: Sequence[Record],
    operands: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    """Follows a function call or a shard_map."""
    (function,) = value_magnitudes.closed_jaxprs(eqn)
    operands = operands[len(operands) - len(function.jaxpr.invars) :]
    return self.run(function, records[0], operands, location)

  def cond(
    self,
    eqn: jex_core.JaxprEqn,
    records: Sequence[Record],
    operands: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    """Follows each branch that ran: on several devices there may be two."""
    results = [
      self.run(branch, record, operands[1:], location)
      for branch, record in zip(eqn.params['branches'], records, strict=True)
      if record.has_run
    ]
    return [_merge(values) for values in zip(*results, strict=True)]

  def scan(
    self,
    eqn: jex_core.JaxprEqn,
    records: Sequence[Record],
    operands: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    """Follows each iteration in the order of execution."""
    (record,), (body,) = records, value_magnitudes.closed_jaxprs(eqn)
    num_consts, num_carry = jaxprs.scan_num_consts_and_carry(eqn)
    consts = list(operands[:num_consts])
    carry = list(operands[num_consts : num_consts + num_carry])
    scanned = operands[num_consts + num_carry :]
    avals = [v.aval for v in body.jaxpr.invars[num_consts + num_carry :]]
    stacked: list[list[Value]] = [
      [] for _ in range(len(eqn.outvars) - num_carry)
    ]
    length = eqn.params['length']
    for i in range(length)[:: -1 if eqn.params['reverse'] else 1]:
      iteration: Record = jax.tree.map(lambda x, i=i: x[i], record)
      inner = dataclasses.replace(
        location, iterations=(*location.iterations, f'{i + 1} of {length}')
      )
      slices = _slices(scanned, avals, iteration.inputs)
      results = self.run(body, iteration, [*consts, *carry, *slices], inner)
      carry = results[:num_carry]
      for values, value in zip(stacked, results[num_carry:], strict=True):
        values.append(value)
    return [*carry, *[_merge(values) for values in stacked]]

  def while_loop(
    self,
    eqn: jex_core.JaxprEqn,
    records: Sequence[Record],
    operands: Sequence[Value],
    location: _Location,
  ) -> list[Value]:
    """Follows the recorded iteration: the first with NaN, else with inf."""
    (record,) = records
    num_cond, num_body = (
      eqn.params['cond_nconsts'],
      eqn.params['body_nconsts'],
    )
    consts = operands[num_cond : num_cond + num_body]
    init = operands[num_cond + num_body :]
    if not record.has_run:
      return list(init)
    body = eqn.params['body_jaxpr']
    avals = [v.aval for v in body.jaxpr.invars[num_body:]]
    carry = _slices(init, avals, record.inputs)
    return self.run(body, record, [*consts, *carry], location)


_RULES = {
  **dict.fromkeys([*jaxprs.CALLS, 'shard_map'], _Search.call),
  'cond': _Search.cond,
  'scan': _Search.scan,
  'while': _Search.while_loop,
}


def _is_finite(record: Record, arguments: Sequence[Value]) -> bool:
  return all(v.nan is None and v.inf is None for v in arguments) and all(
    np.isfinite(x).all() for x in jax.tree.leaves(record)
  )


def _slices(
  values: Sequence[Value], avals: Sequence[Any], magnitudes: Any
) -> list[Value]:
  """Returns the values of one iteration, with the origins of the whole."""
  sizes = iter(np.asarray(magnitudes))
  slices = []
  for value, aval in zip(values, avals, strict=True):
    size = float(next(sizes)) if value_magnitudes.is_float(aval) else 0.0
    if math.isfinite(size):
      slices.append(Value(size, is_constant=value.is_constant))
    elif _kind(size) == 'NaN':
      slices.append(dataclasses.replace(value, magnitude=size))
    else:
      slices.append(dataclasses.replace(value, magnitude=size, nan=None))
  return slices


def _merge(values: Sequence[Value]) -> Value:
  """Returns the value of an array that consists of these."""
  sizes = [v.magnitude for v in values if v.magnitude is not None]
  return Value(
    float(np.max(sizes)) if sizes else None,
    _first(v.nan for v in values),
    _first(v.inf for v in values),
    all(v.is_constant for v in values),
  )


def _first(origins: Iterator[Origin | None]) -> Origin | None:
  return min(
    (o for o in origins if o is not None), key=lambda o: o.order, default=None
  )


def _constant(x: Any) -> Value:
  array = np.asarray(x) if value_magnitudes.is_float(x) else None
  if not isinstance(x, float) and array is None:
    return Value(is_constant=True)
  sizes = np.abs(np.asarray(x, np.float64))
  size = float(np.max(sizes, initial=0.0))
  if math.isfinite(size):
    return Value(size, is_constant=True)
  origin = Origin(
    order=-1, kind=_kind(size), operation='constant', is_constant=True
  )
  nan, inf = (origin, None) if _kind(size) == 'NaN' else (None, origin)
  return Value(size, nan, inf, is_constant=True)


def _enter(location: _Location, eqn: jex_core.JaxprEqn) -> _Location:
  """Returns the location of an equation in a jaxpr."""
  stack = str(eqn.source_info.name_stack)
  scope = '/'.join(part for part in (location.scope, stack) if part)
  source = _source(eqn) or location.source
  return dataclasses.replace(location, scope=scope, source=source)


def _source(eqn: jex_core.JaxprEqn) -> str:
  """Returns the innermost line outside of JAX and Flax."""
  traceback = eqn.source_info.traceback
  if traceback is None:
    return ''
  for frame in traceback.frames:
    if not frame.file_name.startswith(_LIBRARIES):
      file = '/'.join(pathlib.Path(frame.file_name).parts[-3:])
      return f'{file}:{frame.line_num} in {frame.function_name}'
  return ''


def _readable(scope: str) -> str:
  """Returns a name stack without transformations, and methods before others."""
  parts = [p for p in _TRANSFORMATION.sub('', scope).split('/') if p]
  parts = [p for p in parts[:-1] if not _METHOD.fullmatch(p)] + parts[-1:]
  # Nested functions repeat the scope of their caller.
  return '/'.join(part for part, _ in itertools.groupby(parts))


def _operand_text(aval: Any, magnitude: float | None) -> str:
  if magnitude is None:
    return _type(aval)
  return f'{_type(aval)} of magnitude {magnitude:.4g}'


def _kind(magnitude: float) -> str:
  return 'NaN' if math.isnan(magnitude) else 'inf'


def _type(aval: Any) -> str:
  return f'{aval.dtype}{list(aval.shape)}'
