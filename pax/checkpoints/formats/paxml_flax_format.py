# SPDX-License-Identifier: Apache-2.0
"""Train states as paxml writes them for Flax: one msgpack file, read only.

The file is `{'flattened_state': [leaf, ...], 'str_pytree_state': text}`. The
leaves have no names; `text`, the repr of the treedef, implies them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.types import CorruptCheckpointError
from pax.files import storage

Path = storage.Path

_FILE = 'checkpoint'
_LEAVES = 'flattened_state'
_TREEDEF = 'str_pytree_state'
# First bytes of the file: a msgpack map of two entries and the first key.
_MARK = b'\x82\xaf' + _LEAVES.encode()
# Fields of the named tuples in train states of paxml.
_NAMED_TUPLES = {
  'ShardedAdafactorState': ('count', 'm', 'm_scale', 'vr', 'vc', 'v')
}
_TRAIN_STATE_FIELDS = ('step', 'mdl_vars', 'opt_states', 'extra_state')


def find_file(checkpoint: Path) -> Path | None:
  """Returns the file of a checkpoint in this format; None if in another one."""
  folders = [checkpoint / paths.STATE_FOLDER, checkpoint]
  files = [*(folder / _FILE for folder in folders), checkpoint]
  file = next((file for file in files if file.is_file()), None)
  return file if file and _is_state_file(file) else None


def read(file: Path) -> dict[str, np.ndarray]:
  """Returns the leaves by name, in the order of the file.

  A leaf below a node whose keys the treedef does not show, such as another
  NamedTuple than Adafactor's, has a name of `<unnamed>` and its number.

  Raises:
    CorruptCheckpointError: The file cannot be read.
  """
  from flax import serialization

  try:
    tree = serialization.msgpack_restore(file.read_bytes())
    leaves = tree[_LEAVES]
    if isinstance(leaves, dict):
      leaves = [leaves[str(i)] for i in range(len(leaves))]
    names = _leaf_names(str(tree[_TREEDEF]), len(leaves))
  # A parser of damaged bytes may raise anything.
  except Exception as e:
    raise CorruptCheckpointError(
      f'{file} is not a train state of paxml ({type(e).__name__}: {e})'
    ) from e
  return {
    name: np.asarray(leaf)
    for name, leaf in zip(names, leaves, strict=True)
    # Variables that are not trained have an empty node, or None.
    if isinstance(leaf, np.ndarray | np.generic | int | float)
  }


def _is_state_file(file: Path) -> bool:
  with file.open('rb') as stream:
    return stream.read(len(_MARK)) == _MARK


def _leaf_names(treedef: str, num_leaves: int) -> list[str]:
  """Returns the names of the leaves of a treedef.

  Args:
    treedef: The repr of the treedef.
    num_leaves: The number of leaves; a treedef that cannot be parsed, or has
      another number, names none.
  """
  text = treedef.strip().removeprefix('PyTreeDef(')
  try:
    names = _TreedefParser(text).leaf_names()
  except (ValueError, IndexError, SyntaxError):
    names = []
  if len(names) != num_leaves:
    names = [None] * num_leaves
  return [
    f'<unnamed>{i}' if name is None else name for i, name in enumerate(names)
  ]


class _TreedefParser:
  """Parser of the repr of a JAX treedef; yields names as `paths.leaf_name`."""

  def __init__(self, text: str):
    self._text = text
    self._at = 0
    self._names: list[str | None] = []

  def leaf_names(self) -> list[str | None]:
    """Returns the name of each leaf; None below a node with unknown keys."""
    self._node('')
    return [
      name if name is None else name.removeprefix('.') for name in self._names
    ]

  def _node(self, name: str | None) -> None:
    """Parses one node, whose key path is `name`.

    Raises:
      ValueError: The text is not a treedef.
    """
    if self._skip('*'):
      self._names.append(name)
    elif self._skip('None'):
      pass
    elif self._skip('('):
      self._children(')', lambda i: f'_{i}', name)
    elif self._skip('['):
      self._children(']', lambda i: f'_{i}', name)
    elif self._skip('{'):
      self._dict(name)
    elif self._skip('CustomNode('):
      self._custom_node(name)
    else:
      raise ValueError(f'unknown node {self._text[self._at :][:20]!r}')

  def _children(
    self, end: str, key: Callable[[int], str | None], name: str | None
  ) -> None:
    index = 0
    while not self._skip(end):
      suffix = key(index)
      self._node(None if name is None or suffix is None else name + suffix)
      self._skip(',')
      index += 1

  def _dict(self, name: str | None) -> None:
    while not self._skip('}'):
      end = _literal_end(self._text, self._at)
      key = ast.literal_eval(self._text[self._at : end])
      self._at = end
      if not self._skip(':'):
        raise ValueError(f'no value for key {key!r}')
      self._node(None if name is None else f'{name}.{_key(key)}')
      self._skip(',')

  def _custom_node(self, name: str | None) -> None:
    """Parses `Type[data], [children])`."""
    start = self._text.index('[', self._at)
    kind = self._text[self._at : start]
    end = _bracket_end(self._text, start)
    keys = _node_keys(kind, self._text[start + 1 : end - 1])
    self._at = end
    if not (self._skip(',') and self._skip('[')):
      raise ValueError(f'{kind} has no children')
    self._children(
      ']', lambda i: f'.{_key(keys[i])}' if keys is not None else None, name
    )
    if not self._skip(')'):
      raise ValueError(f'{kind} has no end')

  def _skip(self, token: str) -> bool:
    """Skips a token after spaces; returns whether it is next."""
    while self._text[self._at : self._at + 1] == ' ':
      self._at += 1
    is_next = self._text.startswith(token, self._at)
    self._at += len(token) * is_next
    return is_next


def _node_keys(kind: str, data: str) -> Sequence[str] | None:
  """Returns the keys of the children of a custom node; None if unknown."""
  if 'TrainState' in kind:
    return _TRAIN_STATE_FIELDS
  if 'NestedMap' in kind:
    return [str(key) for key in ast.literal_eval(data)]
  if 'namedtuple' in kind:
    return _NAMED_TUPLES.get(data)
  return None


def _key(key: str) -> str:
  return str(key).replace('/', '.')


def _literal_end(text: str, start: int) -> int:
  """Returns the end of the string or number that starts at `start`."""
  match = re.compile(
    r'\s*(\'(?:[^\'\\]|\\.)*\'|"(?:[^"\\]|\\.)*"|-?\d+)'
  ).match(text, start)
  if match is None:
    raise ValueError(f'no key at {text[start:][:20]!r}')
  return match.end()


def _bracket_end(text: str, start: int) -> int:
  """Returns the end of the bracketed text that starts at `start`.

  Raises:
    ValueError: The bracket is not closed.
  """
  depth, at = 0, start
  while at < len(text):
    if text[at] in '\'"':
      at = _literal_end(text, at)
      continue
    depth += (text[at] in '[({') - (text[at] in '])}')
    at += 1
    if not depth:
      return at
  raise ValueError('a bracket is not closed')
