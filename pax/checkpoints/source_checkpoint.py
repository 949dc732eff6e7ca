# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of another task, whose leaves initialize those of a state."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

import jax

from pax import train_states
from pax.checkpoints import checkpoint_reader, reading
from pax.checkpoints.types import Shapes
from pax.files import storage

# Beginnings of the names of leaves.
MDL_VARS = 'mdl_vars.'
OPT_STATES = 'opt_states_'

_EMA = 'ema/'
_PARAMS = f'{MDL_VARS}params.'
_CANONICAL_OPT_STATES = 'opt_states/'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceCheckpoint:
  """A checkpoint to load leaves from."""

  directory: str
  step: int
  leaves: checkpoint_reader.LeafSource

  @classmethod
  def open(cls, directory: str, step: int | None = None) -> SourceCheckpoint:
    """Returns the checkpoint of `step`, or the newest.

    Raises:
      CheckpointError: There is none.
    """
    step, path = reading.find_checkpoint(directory, step)
    return cls(
      directory=directory,
      step=step,
      leaves=checkpoint_reader.CheckpointReader(path),
    )

  @property
  def path(self) -> storage.Path:
    """The files, for messages."""
    return self.leaves.path

  @property
  def shapes(self) -> Shapes:
    """Shape and dtype of each leaf by leaf name."""
    return self.leaves.shapes

  def variable_leaf(self, path: str, *, allow_ema: bool = True) -> str:
    """Returns the leaf name of a variable, or of its average.

    Args:
      path: Slash path of the variable; `ema/` before it selects the average.
      allow_ema: Whether averages may be loaded.

    Raises:
      KeyError: The checkpoint has no such variable.
      RuntimeError: The path selects an average and there are none.
    """
    variable_path = path.removeprefix(_EMA)
    dotted = variable_path.replace('/', '.')
    leaf = f'{MDL_VARS}{dotted}'
    if path != variable_path:
      averages = {
        name.partition('.ema.')[2]: name
        for path, name in self._by_canonical_path.items()
        if path.startswith(_CANONICAL_OPT_STATES) and '.ema.' in name
      }
      if not averages or not allow_ema:
        raise RuntimeError(
          f'{path} is a moving average, and {self.path} has no averages (or'
          ' load_ema_states is False); load the variable instead'
        )
      # Non-trainable variables have no average.
      leaf = averages.get(dotted, leaf)
    if leaf not in self.shapes:
      raise KeyError(f'{path} is not in {self.path}; correct the load_rules')
    return leaf

  def opt_state_leaf(self, path: str) -> str | None:
    """Returns the leaf name of an optimizer state, or None.

    Args:
      path: Slash path in `opt_states`, `0/2/m/params/lm/w`.
    """
    return self._by_canonical_path.get(_canonical(OPT_STATES + path))

  @functools.cached_property
  def _by_canonical_path(self) -> Mapping[str, str]:
    """Leaf names by path; `flax.serialization` makes dicts of lists."""
    return {_canonical(name): name for name in self.shapes}

  def provenance(self) -> train_states.TensorProvenance:
    """Returns the origin of values loaded from this checkpoint."""
    return train_states.TensorProvenance(self.directory, self.step)


@dataclasses.dataclass(frozen=True)
class LeafMapping:
  """Leaves of the state that are loaded from one checkpoint."""

  source: SourceCheckpoint
  # Leaf of the state -> leaf of the checkpoint.
  leaves: Mapping[str, str]


def table(
  mappings: Sequence[LeafMapping],
  metadata: Mapping[str, jax.ShapeDtypeStruct],
) -> str:
  """Returns a table of the leaves that are loaded from each checkpoint.

  At the end are the parameters that no checkpoint has.
  """
  by_source: dict[str, dict[str, str]] = {}
  for mapping in mappings:
    by_source.setdefault(str(mapping.source.path), {}).update(mapping.leaves)
  shapes = {name: str(list(leaf.shape)) for name, leaf in metadata.items()}
  loaded = {target for leaves in by_source.values() for target in leaves}
  widths = [
    max((len(text) for text in column), default=0)
    for column in (loaded, (shapes[target] for target in loaded))
  ]
  lines = []
  for path, leaves in by_source.items():
    lines.append(f'from {path}: {len(leaves)} of {len(metadata)} arrays')
    lines += [
      f'  {target:{widths[0]}}  {shapes[target]:{widths[1]}}  <- {leaf}'
      for target, leaf in leaves.items()
    ]
  lines.append(f'arrays initialized afresh: {len(metadata) - len(loaded)}')
  if fresh := sorted(
    name for name in metadata.keys() - loaded if name.startswith(_PARAMS)
  ):
    lines[-1] += f', of them {len(fresh)} parameters of the model'
    lines += [f'  {name}  {shapes[name]}' for name in fresh]
  return '\n'.join(lines)


def _canonical(name: str) -> str:
  """Returns a leaf name or path with keys and indices separated by slashes."""
  return re.sub(r'_(?=\d+(?:[./_]|$))|\.', '/', name)
