# SPDX-License-Identifier: Apache-2.0
"""Warm start: leaves of a train state from checkpoints of other tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import NamedSharding

from pax import train_states
from pax.checkpoints import (
  loading_rules,
  low_rank_updates,
  paths,
  policy_networks,
  source_checkpoint,
)
from pax.checkpoints.types import CheckpointError

LOAD_ALL = loading_rules.LOAD_ALL
Rules = loading_rules.CheckpointLoadingRules
TrainState = train_states.TrainState
# Origin of each leaf by leaf name.
Provenance = dict[str, train_states.TensorProvenance]

_STEP = 'step'


def match_rules(
  targets: Sequence[str], rules: Rules, initialized: dict[str, str]
) -> dict[str, str]:
  """Returns the path in the checkpoint of each target that a rule matches.

  The first matching rule applies; a regex matches from the start of a path.
  Targets that match `ignore_rules` or are in `initialized` are skipped.

  Args:
    targets: Paths in the state.
    rules: The rules of one checkpoint.
    initialized: Targets that are initialized already; matches are added.

  Raises:
    ValueError: `safe_load` is set and a rule matches nothing; or a regex, or
      the path of a rule, has an error.
  """
  load = [
    (_compile('load_rules', regex), template)
    for regex, template in rules.load_rules
  ]
  ignored = [_compile('ignore_rules', x) for x in rules.ignore_rules or ()]
  used: set[str] = set()
  sources: dict[str, str] = {}
  for target in targets:
    if target in initialized or any(r.match(target) for r in ignored):
      continue
    for regex, template in load:
      if match := regex.match(target):
        sources[target] = _source_path(template, match)
        used.add(regex.pattern)
        break
  initialized |= sources
  unused = {regex.pattern for regex, _ in load} - used
  if rules.safe_load and unused:
    raise ValueError(
      f'load_rules {sorted(unused)} match no variable that is still to be'
      ' loaded, and safe_load is set; correct the expressions'
    )
  return sources


def apply_rules(
  state: TrainState,
  provenance: TrainState,
  all_rules: Mapping[str, Rules],
  partition_specs: TrainState | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> tuple[TrainState, TrainState, bool]:
  """Replaces the leaves of a state that rules select, and no others.

  Args:
    state: The state, whose replaced leaves are deleted.
    provenance: The origin of each leaf.
    all_rules: The rules by directory of the checkpoints.
    partition_specs: PartitionSpecs of the new leaves over `mesh`; None keeps
      the sharding of each leaf.
    mesh: The mesh.

  Returns:
    The state; its provenance; and whether the optimizer states are to be
    initialized again from the variables, because no rule loaded any.

  Raises:
    ValueError: See `LeafLoader.select_by_rules`.
    KeyError: A rule names a variable that is not in the checkpoint.
    RuntimeError: A rule names an average and there are none.
  """
  state = jax.tree.map(jnp.asarray, state)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  if mesh is not None and partition_specs is not None:
    shardings = jax.tree.map(
      lambda _, spec: NamedSharding(mesh, spec), state, partition_specs
    )
  metadata = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state,
    shardings,
  )
  loader = LeafLoader(metadata, logging.info)
  loader.select_by_rules(all_rules)
  leaves = paths.flatten(state)
  for name in loader.selected:
    # Frees device memory for the new values.
    leaves[name].delete()
  state = paths.unflatten(state, leaves | loader.read())
  origins = paths.flatten(provenance)
  loaded = {
    name: origin
    for name, origin in loader.provenance.items()
    if origin != train_states.TensorProvenance()
  }
  has_opt_states = any(
    name.startswith(source_checkpoint.OPT_STATES) for name in loaded
  )
  return (
    state,
    paths.unflatten(provenance, origins | loaded),
    not has_opt_states,
  )


class LeafLoader:
  """Selects leaves of a state that other checkpoints have, and reads them.

  A leaf that is selected from one checkpoint is skipped by later ones. All
  errors of names, shapes and dtypes are found before anything is read.
  """

  def __init__(
    self,
    metadata: TrainState,
    show: Callable[[str], None],
    *,
    is_trained: bool = True,
  ):
    """Selects nothing.

    Args:
      metadata: Shapes, dtypes and shardings of the state.
      show: Prints the table of leaves to load.
      is_trained: Whether the state is that of training.
    """
    self._is_trained = is_trained
    self._structure = metadata
    # Shape, dtype and sharding of each leaf by name.
    self.metadata = paths.flatten(metadata)
    self._opt_paths = _opt_paths(metadata)
    self._show = show
    self._mappings: list[source_checkpoint.LeafMapping] = []
    self.provenance: Provenance = {
      name: train_states.TensorProvenance() for name in self.metadata
    }

  @property
  def selected(self) -> list[str]:
    """Names of the leaves that `read` returns."""
    return [target for mapping in self._mappings for target in mapping.leaves]

  @property
  def provenance_tree(self) -> train_states.TrainStateProvenance:
    """The origin of each leaf, in the structure of the state."""
    return paths.unflatten(self._structure, self.provenance)

  def select_by_name(self, directory: str, step: int | None) -> None:
    """Selects variables by name and shape from a directory's checkpoint.

    Args:
      directory: The directory of the checkpoints.
      step: The step of the checkpoint; None is the newest.

    Raises:
      CheckpointError: No variable has the same name and shape.
    """
    self.select_by_source(
      source_checkpoint.SourceCheckpoint.open(directory, step)
    )

  def select_by_source(
    self,
    source: source_checkpoint.SourceCheckpoint,
    *,
    is_full: bool = False,
    network: str | None = None,
  ) -> None:
    """Selects the variables of an open checkpoint of equal name and shape.

    See `source_leaves` for the names of policies and references.

    Args:
      source: The checkpoint.
      is_full: Whether the model must have every leaf of the checkpoint.
      network: The network of the model that gets them; None is all of it.

    Raises:
      CheckpointError: No variable has the same name and shape, or a leaf has no
        variable and `is_full` is set.
    """
    shared = {}
    for name, leaf in self._variables(network).items():
      for source_name in policy_networks.source_leaves(
        name, is_trained=self._is_trained
      ):
        shape, _ = source.shapes.get(source_name, (None, None))
        if shape == tuple(leaf.shape):
          shared[name] = source_name
          break
    self._check_shared(shared)
    used = set(shared.values())
    if network is None:
      low_rank_updates.check_used(source.path, source.shapes, used)
    low_rank_updates.check_magnitudes(source.path, shared, self.metadata)
    if is_full and (missing := source.shapes.keys() - used):
      name = min(missing)
      raise CheckpointError(
        f'the model must have all {len(source.shapes)} variables of'
        f' {source.path}; {len(missing)} are missing or have other shapes, such'
        f' as {name} of shape {list(source.shapes[name][0])}'
      )
    if not shared:
      raise CheckpointError(
        f'{source.path} has no variable of this model, by name and shape; use'
        ' task.train.init_from_checkpoint_rules to map its names'
      )
    mapping = source_checkpoint.LeafMapping(source, shared)
    self._select([mapping], network)

  def select_by_rules(self, all_rules: Mapping[str, Rules]) -> None:
    """Selects leaves by rules.

    Args:
      all_rules: The rules by directory of the checkpoints.

    Raises:
      ValueError: See `match_rules`; or two variables of different shardings
        have the same source; or shapes differ.
      KeyError: A rule names a variable that is not in the checkpoint.
      RuntimeError: A rule names an average and there are none.
    """
    variables, states = [], []
    initialized_variables: dict[str, str] = {}
    initialized_states: dict[str, str] = {}
    for directory, rules in all_rules.items():
      source = source_checkpoint.SourceCheckpoint.open(directory, rules.step)
      variables.append(
        self._map_variables(source, rules, initialized_variables)
      )
      states.append(self._map_states(source, rules, initialized_states))
    self._select([*variables, *states])

  def read(self) -> dict[str, jax.Array]:
    """Returns the selected leaves by name; no two share a buffer."""
    leaves: dict[str, jax.Array] = {}
    for mapping in self._mappings:
      leaves |= self._read(mapping)
    return leaves

  def _fresh_leaves(
    self, network: str | None = None
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the leaves of a network that no checkpoint has initialized."""
    fresh = train_states.TensorProvenance()
    return {
      name: leaf
      for name, leaf in self.metadata.items()
      if self.provenance[name] == fresh
      and (network is None or f'.{network}.' in name)
    }

  def _variables(
    self, network: str | None = None
  ) -> dict[str, jax.ShapeDtypeStruct]:
    fresh = self._fresh_leaves(network)
    return {
      x: fresh[x] for x in fresh if x.startswith(source_checkpoint.MDL_VARS)
    }

  def _map_variables(
    self,
    source: source_checkpoint.SourceCheckpoint,
    rules: Rules,
    initialized: dict[str, str],
  ) -> source_checkpoint.LeafMapping:
    by_path = {
      name.removeprefix(source_checkpoint.MDL_VARS).replace('.', '/'): name
      for name in self._variables()
    }
    sources = match_rules(list(by_path), rules, initialized)
    leaves = {
      by_path[path]: source.variable_leaf(
        source_path, allow_ema=rules.load_ema_states
      )
      for path, source_path in sources.items()
    }
    self._check_shared(leaves)
    return source_checkpoint.LeafMapping(source, leaves)

  def _map_states(
    self,
    source: source_checkpoint.SourceCheckpoint,
    rules: Rules,
    initialized: dict[str, str],
  ) -> source_checkpoint.LeafMapping:
    """Returns the step and the optimizer states that the rules select."""
    leaves = {}
    if rules.load_step and _STEP not in initialized:
      leaves[_STEP] = initialized[_STEP] = _STEP
    by_path = self._opt_paths
    if rules.partial_load_opt_states:
      # safe_load applies to variables only.
      sources = match_rules(
        list(by_path), rules._replace(safe_load=False), initialized
      )
      for path, source_path in sources.items():
        leaf = source.opt_state_leaf(source_path)
        if leaf is None:
          raise KeyError(
            f'optimizer state {source_path} is not in {source.path}; correct'
            ' the load_rules'
          )
        leaves[by_path[path]] = leaf
    elif rules.load_opt_states and not initialized.keys() - {_STEP}:
      leaves |= _all_opt_states(by_path, source)
      initialized |= leaves
    return source_checkpoint.LeafMapping(source, leaves)

  def _check_shared(self, leaves: Mapping[str, str]) -> None:
    """Checks that variables with the same source have the same sharding."""
    shardings: dict[str, NamedSharding] = {}
    for target, leaf in leaves.items():
      sharding = self.metadata[target].sharding
      if shardings.setdefault(leaf, sharding) != sharding:
        raise ValueError(
          f'{target} and another variable come from {leaf}, and are sharded'
          f' differently: {sharding} and {shardings[leaf]}; shard them alike'
        )

  def _select(
    self,
    mappings: Sequence[source_checkpoint.LeafMapping],
    network: str | None = None,
  ) -> None:
    for mapping in mappings:
      self._check_types(mapping)
    self._show(source_checkpoint.table(mappings, self._fresh_leaves(network)))
    self._mappings += mappings
    for mapping in mappings:
      self.provenance |= dict.fromkeys(
        mapping.leaves, mapping.source.provenance()
      )

  def _check_types(self, mapping: source_checkpoint.LeafMapping) -> None:
    """Compares the shapes, and refuses integers made of floats."""
    for target, leaf in mapping.leaves.items():
      wanted = self.metadata[target]
      saved_shape, saved_dtype = mapping.source.shapes[leaf]
      if tuple(saved_shape) != tuple(wanted.shape):
        raise ValueError(
          f'{target} must have shape {list(wanted.shape)}, and {leaf} in'
          f' {mapping.source.path} has {list(saved_shape)}; leave it out by'
          ' ignore_rules'
        )
      is_float = jnp.issubdtype(jnp.dtype(saved_dtype), jnp.floating)
      if is_float and jnp.issubdtype(wanted.dtype, jnp.integer):
        raise ValueError(
          f'{target} must be {wanted.dtype}, and {leaf} in'
          f' {mapping.source.path} is {saved_dtype}; a model with quantized'
          ' weights starts from a checkpoint of --mode=quantize'
        )

  def _read(
    self, mapping: source_checkpoint.LeafMapping
  ) -> dict[str, jax.Array]:
    """Returns the leaves of one checkpoint by name."""
    abstract = {}
    for target, leaf in mapping.leaves.items():
      shape, dtype = mapping.source.shapes[leaf]
      abstract[leaf] = jax.ShapeDtypeStruct(
        shape, jnp.dtype(dtype), sharding=self.metadata[target].sharding
      )
    loaded = mapping.source.leaves.read(abstract)
    leaves: dict[str, jax.Array] = {}
    used = set()
    for target, leaf in mapping.leaves.items():
      value = loaded[leaf].astype(self.metadata[target].dtype)
      # The train step donates its state: no two leaves may share a buffer.
      leaves[target] = jnp.copy(value) if leaf in used else value
      used.add(leaf)
    return leaves


def parse(text: str) -> tuple[str, int | None]:
  """Returns directory and step of `--init_from=DIR[@STEP]`.

  An @ before a slash belongs to the directory.

  Raises:
    ValueError: The text after @ is not a number.
  """
  directory, at, step = text.rpartition('@')
  if not at or '/' in step:
    return text, None
  if not step.isdigit():
    raise ValueError(
      f'--init_from must be DIR or DIR@STEP, got {text!r}; without @STEP it is'
      ' the newest checkpoint'
    )
  return directory, int(step)


def _compile(field: str, regex: str) -> re.Pattern[str]:
  try:
    return re.compile(regex)
  except re.error as e:
    raise ValueError(
      f'{field} has the regular expression {regex!r}, which has an error: {e}'
    ) from e


def _source_path(template: str, match: re.Match[str]) -> str:
  try:
    return template.format(*match.groups())
  except (IndexError, KeyError, ValueError) as e:
    raise ValueError(
      f'load_rules has the path {template!r} for {match.re.pattern!r}; each of'
      f' its {{}} must stand for one of the {match.re.groups} groups of the'
      ' expression'
    ) from e


def _all_opt_states(
  by_path: Mapping[str, str], source: source_checkpoint.SourceCheckpoint
) -> dict[str, str]:
  """Returns the sources of all optimizer states.

  States of an Optax optimizer may come from praxis.optimizers.Adam.
  """
  leaves = {
    name: leaf
    for path, name in by_path.items()
    if (leaf := source.opt_state_leaf(path))
  }
  if len(leaves) == len(by_path):
    return leaves
  leaves = {}
  for path, name in by_path.items():
    for regex, template in loading_rules.get_optax_opt_load_rules():
      if match := regex.match(path):
        leaf = source.opt_state_leaf(template.format(*match.groups()))
        if leaf is not None:
          leaves[name] = leaf
  if not leaves:
    missing = next(n for n in by_path.values() if n not in source.shapes)
    raise KeyError(
      f'{missing} is not in {source.path}, whose optimizer is another one; use'
      ' partial_load_opt_states to map the states by rules'
    )
  logging.warning(
    '%d optimizer states are initialized afresh', len(by_path) - len(leaves)
  )
  return leaves


def _opt_paths(metadata: TrainState) -> dict[str, str]:
  """Returns leaf names of optimizer states by path, `0/2/m/params/lm/w`."""
  leaves = jax.tree_util.tree_flatten_with_path(metadata.opt_states)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): (
      paths.leaf_name((jax.tree_util.GetAttrKey('opt_states'), *path))
    )
    for path, _ in leaves
  }
