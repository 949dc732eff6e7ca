# SPDX-License-Identifier: Apache-2.0
"""Starts a state from other checkpoints: which variable comes from where.

Rules are pairs of a regex on the path of a variable, `params/lm/softmax/w`, and
the path in the checkpoint, a format string with the groups of the regex.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from pax import tasks_lib, train_states
from pax.checkpoints import paths, reading
from pax.checkpoints.types import CheckpointError

Rules = tasks_lib.CheckpointLoadingRules
TrainState = train_states.TrainState
Provenance = dict[str, train_states.TensorProvenance]

# Takes everything by its own name.
LOAD_ALL = ('(.*)', '{}')
_EMA = 'ema/'
_STEP = 'step'
_OPT_STATES = 'opt_states_'
# What an optimizer of optax calls the states of Pax's own Adam.
_OPTAX_RULES = (
  (re.compile(r'(.*)/0/mu/params/(.*)'), '{}/m/params/{}'),
  (re.compile(r'(.*)/0/nu/params/(.*)'), '{}/v/params/{}'),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """One checkpoint that others start from."""

  directory: str
  step: int
  path: pathlib.Path
  # Shape and dtype of each leaf by name.
  shapes: Mapping[str, tuple[tuple[int, ...], str]]

  @classmethod
  def open(cls, directory: str, step: int | None = None) -> Source:
    """The checkpoint of a step, or the newest.

    Raises:
      CheckpointError: there is none.
    """
    step, path = reading.find_checkpoint(directory, step)
    return cls(
      directory=directory,
      step=step,
      path=path,
      shapes=reading.saved_shapes(path),
    )

  def variable(self, path: str, *, allow_ema: bool = True) -> str:
    """The leaf of a variable, or with `ema/` before its path of its average.

    Raises:
      KeyError: the checkpoint has no such variable.
      RuntimeError: averages are asked for, and there are none.
    """
    plain = path.removeprefix(_EMA)
    leaf = f'mdl_vars.{plain.replace("/", ".")}'
    if path != plain:
      averages = {
        name.partition('.ema.')[2]: name
        for name in self.shapes
        if name.startswith(_OPT_STATES) and '.ema.' in name
      }
      if not averages or not allow_ema:
        raise RuntimeError(
          f'{path} is asked for, and the task of {self.path} keeps no averages'
          ' (or load_ema_states is False); take the variable itself'
        )
      # What is not trained has no average.
      leaf = averages.get(plain.replace('/', '.'), leaf)
    if leaf not in self.shapes:
      raise KeyError(f'{path} is not in {self.path}; correct the load_rules')
    return leaf

  def opt_leaf(self, path: str) -> str | None:
    """The leaf of an optimizer state by its path, `0/2/m/params/lm/w`."""
    wanted = _canonical(_OPT_STATES + path)
    found = (name for name in self.shapes if _canonical(name) == wanted)
    return next(found, None)

  def origin(self) -> train_states.TensorProvenance:
    return train_states.TensorProvenance(self.directory, self.step)


@dataclasses.dataclass(frozen=True)
class Mapped:
  """Which leaf of a checkpoint becomes which leaf of the state."""

  source: Source
  # Leaf of the state -> leaf of the checkpoint.
  leaves: Mapping[str, str]


def match(
  targets: Sequence[str], rules: Rules, initialized: dict[str, str]
) -> dict[str, str]:
  """Returns the path in the checkpoint of each target that a rule names.

  Rules are tried in their order, and match from the start of a path. What
  `ignore_rules` match, or is in `initialized` already, goes to the next rule;
  what is found is added to `initialized`.

  Raises:
    ValueError: with `safe_load`, a rule that gave nothing.
  """
  load = [(re.compile(regex), template) for regex, template in rules.load_rules]
  ignored = [re.compile(regex) for regex in rules.ignore_rules or ()]
  fired, found = set(), {}
  for target in targets:
    if target in initialized or any(r.match(target) for r in ignored):
      continue
    for regex, template in load:
      if hit := regex.match(target):
        found[target] = initialized[target] = template.format(*hit.groups())
        fired.add(regex.pattern)
        break
  idle = {regex.pattern for regex, _ in load} - fired
  if rules.safe_load and idle:
    raise ValueError(
      f'load_rules {sorted(idle)} match no variable that is still to be'
      ' loaded, and safe_load is set; correct the expressions'
    )
  return found


class Initializer:
  """A fresh state, and what of it is taken from other checkpoints."""

  def __init__(
    self,
    metadata: TrainState,
    fresh_opt_states: Callable[[Any], list[Any]],
    show: Callable[[str], None],
  ):
    """Knows the state, and loads nothing yet.

    Args:
      metadata: Shapes and shardings of the state.
      fresh_opt_states: Makes optimizer states for variables.
      show: Tells a person what will be loaded.
    """
    self._metadata = paths.flatten(metadata)
    self._opt_paths = _opt_paths(metadata)
    self._fresh_opt_states = fresh_opt_states
    self._show = show
    self.provenance: Provenance = {
      name: train_states.TensorProvenance() for name in self._metadata
    }

  def by_name(self, state: TrainState, directory: str, step: int | None) -> Any:
    """Returns `state` with all variables that a checkpoint has too.

    Raises:
      ValueError: there is none of that name and shape.
    """
    source = Source.open(directory, step)
    shared = {
      name: name
      for name, leaf in self._variables().items()
      if source.shapes.get(name, ((-1,), ''))[0] == tuple(leaf.shape)
    }
    if not shared:
      raise CheckpointError(
        f'{source.path} has no variable of this model, by name and shape; use'
        ' task.train.init_from_checkpoint_rules to map its names'
      )
    return self._load(state, [Mapped(source, shared)], [])

  def by_rules(self, state: TrainState, all_rules: Mapping[str, Rules]) -> Any:
    """Returns `state` with what the rules of each checkpoint name.

    Checkpoints are taken in their order; what one gave, no later one changes.

    Raises:
      ValueError: see `match`; or two variables of different shardings come
        from one; or shapes differ.
      KeyError: a variable that a rule names is not in the checkpoint.
      RuntimeError: a rule names averages, and there are none.
    """
    variables, states = [], []
    initialized: dict[str, str] = {}
    done: dict[str, str] = {}
    for directory, rules in all_rules.items():
      source = Source.open(directory, rules.step)
      variables.append(self._map_variables(source, rules, initialized))
      states.append(self._map_states(source, rules, done))
    return self._load(state, variables, states)

  def _variables(self) -> dict[str, Any]:
    return {
      name: leaf
      for name, leaf in self._metadata.items()
      if name.startswith('mdl_vars.')
    }

  def _map_variables(
    self, source: Source, rules: Rules, initialized: dict[str, str]
  ) -> Mapped:
    by_path = {
      name.removeprefix('mdl_vars.').replace('.', '/'): name
      for name in self._variables()
    }
    found = match(list(by_path), rules, initialized)
    leaves = {
      by_path[path]: source.variable(wanted, allow_ema=rules.load_ema_states)
      for path, wanted in found.items()
    }
    self._check_shared(leaves)
    return Mapped(source, leaves)

  def _map_states(
    self, source: Source, rules: Rules, done: dict[str, str]
  ) -> Mapped:
    """The step and the optimizer states, as far as the rules ask for them."""
    leaves = {}
    if rules.load_step and _STEP not in done:
      leaves[_STEP] = done[_STEP] = _STEP
    by_path = self._opt_paths
    if rules.partial_load_opt_states:
      # What is safe to miss among variables may be so here.
      found = match(list(by_path), rules._replace(safe_load=False), done)
      for path, wanted in found.items():
        leaf = source.opt_leaf(wanted)
        if leaf is None:
          raise KeyError(f'optimizer state {wanted} is not in {source.path}')
        leaves[by_path[path]] = leaf
    elif rules.load_opt_states and not done.keys() - {_STEP}:
      leaves |= _whole_opt_states(by_path, source)
      done |= leaves
    return Mapped(source, leaves)

  def _check_shared(self, leaves: Mapping[str, str]) -> None:
    specs: dict[str, Any] = {}
    for target, leaf in leaves.items():
      spec = self._metadata[target].sharding
      if specs.setdefault(leaf, spec) != spec:
        raise ValueError(
          f'{target} and another variable come from {leaf}, and are sharded'
          f' differently: {spec} and {specs[leaf]}; shard them alike'
        )

  def _load(
    self, state: TrainState, variables: list[Mapped], states: list[Mapped]
  ) -> TrainState:
    for mapped in (*variables, *states):
      self._check_shapes(mapped)
      self._show(table(mapped, self._metadata))
    flat = paths.flatten(state)
    for mapped in variables:
      self._replace(flat, mapped)
    state = paths.unflatten(state, flat)
    state = state.replace(opt_states=self._fresh_opt_states(state.mdl_vars))
    flat = paths.flatten(state)
    for mapped in states:
      self._replace(flat, mapped)
    return paths.unflatten(state, flat)

  def _check_shapes(self, mapped: Mapped) -> None:
    for target, leaf in mapped.leaves.items():
      found = tuple(mapped.source.shapes[leaf][0])
      wanted = tuple(self._metadata[target].shape)
      if found != wanted:
        raise ValueError(
          f'{target} must have shape {list(wanted)}, and {leaf} in'
          f' {mapped.source.path} has {list(found)}; leave it out by'
          ' ignore_rules'
        )

  def _replace(self, flat: dict[str, Any], mapped: Mapped) -> None:
    """Puts leaves of the checkpoint in the place of those in `flat`."""
    for target in mapped.leaves:
      # Makes room on the devices before it is needed.
      flat[target].delete()
    wanted = {}
    for target, leaf in mapped.leaves.items():
      shape, dtype = mapped.source.shapes[leaf]
      wanted[leaf] = jax.ShapeDtypeStruct(
        shape, jnp.dtype(dtype), sharding=self._metadata[target].sharding
      )
    found = reading.read_leaves(mapped.source.path, wanted)
    used = set()
    for target, leaf in mapped.leaves.items():
      value = found[leaf].astype(self._metadata[target].dtype)
      # A step of training gives its state away: no two share an array.
      flat[target] = jnp.copy(value) if leaf in used else value
      used.add(leaf)
      self.provenance[target] = mapped.source.origin()


def table(mapped: Mapped, metadata: Mapping[str, Any]) -> str:
  """What is loaded from a checkpoint, a line each, and how much is not."""
  rows = [
    (target, str(list(metadata[target].shape)), leaf)
    for target, leaf in mapped.leaves.items()
  ]
  widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
  lines = [
    f'  {target:{widths[0]}}  {shape:{widths[1]}}  <- {leaf}'
    for target, shape, leaf in rows
  ]
  title = (
    f'from {mapped.source.path}: {len(rows)} of {len(metadata)} arrays; the'
    ' others start afresh'
  )
  return '\n'.join([title, *lines])


def parse(text: str) -> tuple[str, int | None]:
  """The directory and the step of `--init_from=DIR[@step]`.

  Raises:
    ValueError: what is behind the @ is no number.
  """
  directory, at, step = text.rpartition('@')
  if not at:
    return text, None
  if not step.isdigit():
    raise ValueError(
      f'--init_from wants DIR or DIR@STEP, got {text!r}; the newest checkpoint'
      ' is taken without @STEP'
    )
  return directory, int(step)


def _whole_opt_states(
  by_path: Mapping[str, str], source: Source
) -> dict[str, str]:
  """All optimizer states; those of optax may come from our own Adam."""
  if all(name in source.shapes for name in by_path.values()):
    return {name: name for name in by_path.values()}
  leaves = {}
  for path, name in by_path.items():
    for regex, template in _OPTAX_RULES:
      if hit := regex.match(path):
        leaf = source.opt_leaf(template.format(*hit.groups()))
        if leaf is not None:
          leaves[name] = leaf
  if not leaves:
    missing = next(n for n in by_path.values() if n not in source.shapes)
    raise KeyError(
      f'{missing} is not in {source.path}, whose optimizer is another one; use'
      ' partial_load_opt_states to map what there is'
    )
  logging.warning(
    '%d optimizer states start afresh', len(by_path) - len(leaves)
  )
  return leaves


def _opt_paths(metadata: TrainState) -> dict[str, str]:
  """The leaf name of each optimizer state by its path, `0/2/m/params/lm/w`."""
  leaves = jax.tree_util.tree_flatten_with_path(metadata.opt_states)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): (
      paths.leaf_name((jax.tree_util.GetAttrKey('opt_states'), *path))
    )
    for path, _ in leaves
  }


def _canonical(name: str) -> str:
  """A name in which the ways of writing keys and indices are one."""
  return re.sub(r'_(?=\d+(?:[./_]|$))|\.', '/', name)
