# SPDX-License-Identifier: Apache-2.0
"""Compares recorded results: dtypes, shapes, values, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.compare.upstream import results as results_lib

# Tolerances are relative to the largest value of an array, or to this if all
# are smaller.
_FLOOR = 1e-4
_LARGER_FLOORS = (
  # Families `attentions`, `transformers`, `ghostnorm`: gradients of biases of
  # projections are sums over all positions of terms near 1, which cancel. That
  # of a bias of all keys is 0, as softmax does not change if all logits of a
  # query do.
  (
    re.compile(
      r'^grad.*\b(key|query|value|layer_norm_k)\b.*\.(b|bias)(\.param)?$'
    ),
    1.0,
  ),
  # Family `train_steps`: after two or three steps, moments of gradients that
  # are small differences of terms near 1, as those through BatchNorm and
  # softmax. Squares double the relative rounding.
  (re.compile(r'^state\.opt_states\b'), 0.1),
)


def compare(
  upstream: results_lib.Results, ours: results_lib.Results
) -> dict[str, list[str]]:
  """Returns the differences of each case; an empty list where equal."""
  return {
    name: list(_case_differences(name, upstream, ours))
    for name in upstream.outcomes | ours.outcomes
  }


def _case_differences(
  name: str, upstream: results_lib.Results, ours: results_lib.Results
) -> Iterator[str]:
  theirs, mine = upstream.outcomes.get(name), ours.outcomes.get(name)
  if theirs is None or mine is None:
    yield f'only in {"ours" if theirs is None else "upstream"}'
  elif theirs.error or mine.error:
    yield from _errors(theirs, mine, upstream.matches.get(name))
  else:
    tolerance = upstream.tolerances[name]
    yield from _leaves(theirs.leaves, mine.leaves, tolerance)


def _errors(
  theirs: results_lib.Outcome, mine: results_lib.Outcome, match: str | None
) -> Iterator[str]:
  if not mine.error:
    yield f'upstream raises {_line(theirs.error)}, ours returns'
  elif not theirs.error:
    yield f'ours raises {_line(mine.error)}, upstream returns'
  else:
    if not _is_error_compatible(theirs.error, mine.error):
      yield (f'upstream raises {_line(theirs.error)}, ours {_line(mine.error)}')
    for side, outcome in (('upstream', theirs), ('ours', mine)):
      if match and not re.search(match, outcome.error['message']):
        yield f'{side}: no match of {match!r} in {_line(outcome.error)}'


def _is_error_compatible(theirs: dict[str, Any], mine: dict[str, Any]) -> bool:
  """Whether `except` clauses for upstream's class catch ours.

  An assert without a message is a ValueError with one in ours.
  """
  if theirs['types'][0] == 'AssertionError' and not theirs['message']:
    return 'ValueError' in mine['types'] or 'AssertionError' in mine['types']
  return theirs['types'][0] in mine['types']


def _line(error: dict[str, Any]) -> str:
  message = ' '.join(error['message'].split())[:200]
  return f'{error["types"][0]}({message!r})'


def _leaves(
  theirs: dict[str, Any], mine: dict[str, Any], tolerance: float
) -> Iterator[str]:
  for path in sorted(theirs.keys() - mine.keys()):
    yield f'{path}: missing in ours, upstream {_short(theirs[path])}'
  for path in sorted(mine.keys() - theirs.keys()):
    yield f'{path}: missing in upstream, ours {_short(mine[path])}'
  for path in sorted(theirs.keys() & mine.keys()):
    for text in _leaf_differences(
      theirs[path], mine[path], tolerance, _floor_of(path)
    ):
      yield f'{path}: {text}'


def _floor_of(path: str) -> float:
  floors = [floor for pattern, floor in _LARGER_FLOORS if pattern.search(path)]
  return max(floors, default=_FLOOR)


def _leaf_differences(
  theirs: Any, mine: Any, tolerance: float, floor: float
) -> Iterator[str]:
  number = (float, int)
  if isinstance(theirs, number) and isinstance(mine, results_lib.Array):
    theirs = results_lib.Array(mine.dtype, np.asarray(theirs))
  if isinstance(mine, number) and isinstance(theirs, results_lib.Array):
    mine = results_lib.Array(theirs.dtype, np.asarray(mine))
  if isinstance(theirs, number) and isinstance(mine, number):
    theirs = results_lib.Array('number', np.asarray(theirs, np.float64))
    mine = results_lib.Array('number', np.asarray(mine, np.float64))
  if not (
    isinstance(theirs, results_lib.Array)
    and isinstance(mine, results_lib.Array)
  ):
    if type(theirs) is not type(mine) or theirs != mine:
      yield f'upstream {_short(theirs)}, ours {_short(mine)}'
    return
  if theirs.dtype != mine.dtype:
    yield f'dtype {theirs.dtype} in upstream, {mine.dtype} in ours'
    if 'bfloat16' in (theirs.dtype, mine.dtype):
      tolerance = 1e-2
  if theirs.values.shape != mine.values.shape:
    shapes = theirs.values.shape, mine.values.shape
    yield f'shape {shapes[0]} in upstream, {shapes[1]} in ours'
  elif difference := _value_difference(theirs, mine, tolerance, floor):
    yield difference


def _value_difference(
  theirs: results_lib.Array,
  mine: results_lib.Array,
  tolerance: float,
  floor: float,
) -> str:
  a, b = theirs.values, mine.values
  if a.dtype.kind not in 'fc':
    return '' if np.array_equal(a, b) else f'upstream {a!s:.60}, ours {b!s:.60}'
  if np.array_equal(a, b, equal_nan=True):
    return ''
  if not np.array_equal(np.isfinite(a), np.isfinite(b)):
    return f'finite in one only: upstream {a!s:.60}, ours {b!s:.60}'
  finite = np.isfinite(a)
  if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
    return 'inf and nan differ'
  a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
  if theirs.dtype in ('bfloat16', 'float16'):
    tolerance = max(tolerance, 1e-2)
  # Masked scores near -2e38 must not hide the other entries.
  large = np.abs(a) > 1e20
  scale = max(floor, np.abs(a[~large]).max(initial=0.0))
  bound = np.where(large, np.abs(a) * tolerance, scale * tolerance)
  error = np.abs(a - b)
  if (error <= bound).all():
    return ''
  worst = int((error - bound).argmax())
  return (
    f'values differ by up to {error.max():.3g} (scale {scale:.3g}): upstream '
    f'{a[worst]:.7g}, ours {b[worst]:.7g}'
  )


def _short(leaf: Any) -> str:
  if isinstance(leaf, results_lib.Array):
    return f'{leaf.dtype}{list(leaf.values.shape)}'
  return repr(leaf)[:120]
