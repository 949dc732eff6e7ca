# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of data, saved with the state of an input.

A position is meaningful in the data and the order in which it was counted. A
fingerprint has the properties that determine them, by name, so that a restart
with other data is an error that names the changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Short values of JSON by the name of a property.
Fingerprint = Mapping[str, Any]

_STATE_KEY, _DATA_KEY = '__state__', '__data__'
# Characters of a value in a message.
_MAX_CHARS = 160


class ChangedDataError(ValueError):
  """A state belongs to other data than those of the input."""

  def __init__(self, message: str, changes: str = ''):
    super().__init__(message)
    # What changed, without what to do about it.
    self.changes = changes


def attach(state: Any, fingerprint: Fingerprint) -> Any:
  """Returns a state with a fingerprint; an empty one is not attached."""
  if not fingerprint:
    return state
  return {_STATE_KEY: state, _DATA_KEY: dict(fingerprint)}


def detach(state: Any) -> tuple[Any, Fingerprint]:
  """Returns a state without its fingerprint, and the fingerprint or {}."""
  if not isinstance(state, dict) or state.keys() != {_STATE_KEY, _DATA_KEY}:
    return state, {}
  return state[_STATE_KEY], state[_DATA_KEY]


def detach_all(state: Any) -> Any:
  """Returns a state without its fingerprints and those of component inputs."""
  state, _ = detach(state)
  if not isinstance(state, dict):
    return state
  return {name: detach_all(value) for name, value in state.items()}


def check(
  name: str,
  saved: Fingerprint,
  current: Fingerprint,
  advice: Mapping[str, str],
) -> None:
  """Compares the properties that both fingerprints have.

  Args:
    name: Name of the input.
    saved: The fingerprint of a saved state; {} accepts all data.
    current: The fingerprint of the data of the input.
    advice: How to change a property on the way, by its name.

  Raises:
    ChangedDataError: The data changed.
  """
  current = json.loads(json.dumps(dict(current)))
  changed = [
    key for key in saved if key in current and saved[key] != current[key]
  ]
  if changed:
    described = '; '.join(
      f'{key} was {_text(saved[key])}, is {_text(current[key])}'
      for key in changed
    )
    # Properties may have the same advice.
    advised = dict.fromkeys(advice[key] for key in changed if key in advice)
    ways = ', '.join(['Restore them', *advised])
    raise ChangedDataError(
      f'the data of input {name!r} must be those of its saved state, but'
      f' {described}. {ways}, or continue at the same position of the'
      ' changed data by --accept_changed_data',
      f'input {name!r}: {described}',
    )


def _text(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= _MAX_CHARS else f'{text[:_MAX_CHARS]}...'
