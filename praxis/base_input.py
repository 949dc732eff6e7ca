# SPDX-License-Identifier: Apache-2.0
"""Where data enters: an iterator of host batches that can be put back.

An input is made once per process. Its state is small and says which batch is
next, so that a run that was stopped goes on with the batch it would have seen.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from praxis import base_hyperparams, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap
Nested = pytypes.Nested
State = dict[str, Any]

# Names become parts of directories and of summary tags.
_VALID_NAME = re.compile(r'[a-zA-Z0-9.:_+-]+')


class BaseInput(base_hyperparams.FiddleBaseParameterizable):
  """Batches of numpy arrays, the first dimension of each the batch of a host.

  A subclass gives `get_next` and `reset`. One that also gives
  `_get_state_internal` and `_set_state_internal` resumes where it stopped.

  With several hosts no two may emit the same training batch, and a finite input
  must end after equally many batches on all of them.
  """

  # Examples per batch and host.
  batch_size: int | None = None
  # How many hosts read, and which of them this is. 0 hosts: the trainer fills
  # in the processes of the run.
  num_infeed_hosts: int = 0
  infeed_host_index: int = 0
  # Chooses the random order, where there is one.
  input_random_seed: int | None = None
  # Evaluation starts over at each run, and takes one epoch of finite data.
  reset_for_eval: bool = False
  # Else each evaluation takes so many batches and goes on; None or -1: all.
  eval_loop_num_batches: int | None = 1
  # Whether this is training data: it repeats for ever and is never reset.
  is_training: bool = False
  # One host reads for all.
  experimental_remote_input: bool = False
  # Rows of zeros that `get_next_padded` adds.
  batch_padding_size: int = 0
  # The order of devices that batches are laid out on, if not the default.
  custom_device_order: Sequence[int] | None = None
  # Set by the trainer when the state is part of checkpoints.
  input_checkpointing_enabled: bool = False
  # Where a tf.data service listens, for inputs that use one.
  tf_data_service_address: str | None = None

  def __post_init__(self):
    super().__post_init__()
    self._peeked: NestedMap | None = None
    self._state_before_peek: State | None = None
    self.name = self.name or ('train' if self.is_training else 'input')
    self.num_infeed_hosts = self.num_infeed_hosts or 1
    self._check_fields()

  @classmethod
  def get_batch_size(cls, params: pax_fiddle.Config[BaseInput]) -> int:
    """The batch size of one host that `params` ask for."""
    if params.batch_size is None:
      raise ValueError(
        f'batch_size of {params.cls.__name__} is not set; it is the number of '
        'examples per batch and host'
      )
    return params.batch_size

  @classmethod
  def get_global_batch_size(cls, params: pax_fiddle.Config[BaseInput]) -> int:
    """The batch size of all hosts together that `params` ask for."""
    return params.cls.get_batch_size(params) * (params.num_infeed_hosts or 1)

  def get_next(self) -> NestedMap:
    """The next batch.

    Raises:
      StopIteration: there is none; only if the data are finite.
    """
    raise NotImplementedError(f'{type(self).__name__} lacks get_next')

  def reset(self) -> None:
    """Goes back to the first batch."""
    raise NotImplementedError(f'{type(self).__name__} lacks reset')

  def get_child(self, input_name: str) -> BaseInput:
    """The input called `input_name` of those that this one is made of."""
    raise NotImplementedError(f'{type(self).__name__} has no children')

  def get_next_padded(self) -> NestedMap:
    """The next batch, or the peeked one, below it `batch_padding_size` rows."""
    if self._peeked is not None:
      batch, self._peeked, self._state_before_peek = self._peeked, None, None
      return batch
    return _pad_rows(self.get_next(), self.batch_padding_size)

  def peek_padded(self) -> NestedMap | None:
    """What `get_next_padded` will return, or None at the end of the data."""
    if self._peeked is not None:
      return self._peeked
    state = self._state_or_none()
    try:
      batch = _pad_rows(self.get_next(), self.batch_padding_size)
    except StopIteration:
      return None
    self._peeked, self._state_before_peek = batch, state
    return batch

  def get_state(self) -> State:
    """Which batch is next, as a small dict that JSON can hold.

    Raises:
      ValueError: a batch was peeked, and the input cannot say where it was.
      NotImplementedError: the input keeps no state.
    """
    if self._peeked is None:
      return self._get_state_internal()
    if self._state_before_peek is None:
      raise ValueError(
        f'the state of {self.name!r} before its peeked batch is unknown; give '
        f'{type(self).__name__} _get_state_internal, or take the batch first'
      )
    return self._state_before_peek

  def set_state(self, state: State) -> None:
    """Goes to where `state` was taken."""
    self._peeked = self._state_before_peek = None
    self._set_state_internal(state)

  def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Writes the state to a file."""
    with open(checkpoint_path, 'w', encoding='utf-8') as f:
      json.dump(self.get_state(), f)

  def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Goes to the state in a file that `save` wrote."""
    with open(checkpoint_path, encoding='utf-8') as f:
      self.set_state(json.load(f))

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    """The text of each row of `ids`, of which the first `lengths` count.

    Args:
      ids: integers of shape [B, T].
      lengths: integers of shape [B].
      key: which vocabulary, for an input that has several.
    """
    raise NotImplementedError(f'{type(self).__name__} has no vocabulary')

  def derived_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Further metrics that follow from those of a step or an evaluation."""
    del metrics
    return {}

  def reshard_for_pmap(self, arrays: Nested[Any]) -> Nested[Any]:
    """Splits the first dimension of host arrays over the local devices."""
    devices = jax.local_device_count()

    def split(x):
      if x.shape[0] % devices:
        raise ValueError(
          f'a batch of {x.shape[0]} does not divide by {devices} devices; '
          'change batch_size or set batch_padding_size'
        )
      return x.reshape(devices, x.shape[0] // devices, *x.shape[1:])

    return jax.tree.map(split, arrays)

  def reshard_for_spmd(
    self,
    arrays: Nested[Any],
    global_mesh: jax.sharding.Mesh,
    pspecs: Nested[jax.sharding.PartitionSpec],
  ) -> Nested[jax.Array]:
    """Makes global arrays, placed by `pspecs`, from each host's rows."""

    def place(x, spec):
      sharding = jax.sharding.NamedSharding(global_mesh, spec)
      shape = (x.shape[0] * self.num_infeed_hosts, *x.shape[1:])
      return jax.make_array_from_process_local_data(sharding, x, shape)

    return jax.tree.map(place, arrays, pspecs)

  def _get_state_internal(self) -> State:
    raise NotImplementedError(
      f'{type(self).__name__} cannot say where it is; it cannot be resumed'
    )

  def _set_state_internal(self, state: State) -> None:
    raise NotImplementedError(
      f'{type(self).__name__} cannot be set to a state; it cannot be resumed'
    )

  def _state_or_none(self) -> State | None:
    try:
      return self._get_state_internal()
    except NotImplementedError:
      return None

  def _check_fields(self) -> None:
    if not _VALID_NAME.fullmatch(self.name):
      raise ValueError(
        f'name must match {_VALID_NAME.pattern}, got {self.name!r}; it becomes '
        'part of directory names and summary tags'
      )
    if not 0 <= self.infeed_host_index < self.num_infeed_hosts:
      raise ValueError(
        f'infeed_host_index of {self.name!r} must be below num_infeed_hosts = '
        f'{self.num_infeed_hosts}, got {self.infeed_host_index}'
      )
    batches = self.eval_loop_num_batches
    if batches is not None and batches != -1 and batches <= 0:
      raise ValueError(
        f'eval_loop_num_batches of {self.name!r} must be positive, or None or '
        f'-1 for all batches, got {batches}'
      )
    if self.experimental_remote_input and jax.process_count() > 1:
      raise NotImplementedError(
        'experimental_remote_input works with one process only; unset it'
      )
    type(self).get_batch_size(self.hparams)

  def __reduce__(self):
    peeked = self._peeked is not None
    state = self._state_before_peek if peeked else self._state_or_none()
    return _rebuild, (self.hparams.clone(), state)


class MultiInput(BaseInput):
  """Several inputs read side by side: a batch has one sub-batch for each."""

  # The inputs by name.
  input_to_params: dict[str, pax_fiddle.Config[BaseInput]] | None = (
    pax_fiddle.template_field(None)
  )
  # The one that speaks for all, in `ids_to_strings`.
  default_input: str | None = None

  def __post_init__(self):
    if not self.input_to_params:
      raise ValueError('input_to_params of MultiInput names no input')
    if (self.default_input or '') not in ('', *self.input_to_params):
      raise ValueError(
        f'default_input must be one of {sorted(self.input_to_params)}, got '
        f'{self.default_input!r}'
      )
    super().__post_init__()
    self._inputs = {
      name: self._child_params(params).Instantiate()
      for name, params in self.input_to_params.items()
    }

  @classmethod
  def get_batch_size(cls, params: pax_fiddle.Config[BaseInput]) -> int:
    """The largest size that divides the batches of all inputs."""
    if params.batch_size is not None:
      raise ValueError(
        f'batch_size of MultiInput must stay None, got {params.batch_size}; '
        'set it in input_to_params'
      )
    sizes = [p.cls.get_batch_size(p) for p in params.input_to_params.values()]
    return int(np.gcd.reduce(sizes))

  def get_next(self) -> NestedMap:
    return NestedMap({n: i.get_next_padded() for n, i in self._inputs.items()})

  def get_child(self, input_name: str) -> BaseInput:
    return self._inputs[input_name]

  def reset(self) -> None:
    self._peeked = self._state_before_peek = None
    for child in self._inputs.values():
      child.reset()

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
    input_name: str | None = None,
  ) -> Sequence[str]:
    name = input_name or self.default_input
    if name not in self._inputs:
      raise ValueError(
        f'input_name must be one of {sorted(self._inputs)}, got {name!r}; '
        'set default_input'
      )
    return self._inputs[name].ids_to_strings(ids, lengths, key)

  def _child_params(
    self, params: pax_fiddle.Config[BaseInput]
  ) -> pax_fiddle.Config[BaseInput]:
    return params.clone().set(
      num_infeed_hosts=self.num_infeed_hosts,
      infeed_host_index=self.infeed_host_index,
      is_training=self.is_training,
    )

  def _get_state_internal(self) -> State:
    return {name: i.get_state() for name, i in self._inputs.items()}

  def _set_state_internal(self, state: State) -> None:
    for name, child in self._inputs.items():
      child.set_state(state[name])


class BaseInputSpecsProvider(base_hyperparams.FiddleBaseParameterizable):
  """Knows the shapes of batches, for those who need them before the data."""

  def get_input_specs(self) -> NestedMap:
    """A `jax.ShapeDtypeStruct` for each array of a host's batch."""
    raise NotImplementedError(f'{type(self).__name__} lacks get_input_specs')


class DatasetInputSpecsProvider(BaseInputSpecsProvider):
  """The shapes of the first batch of an input."""

  # The input, of which one batch is read.
  input_p: pax_fiddle.Config[BaseInput] | None = pax_fiddle.template_field(None)

  def get_input_specs(self) -> NestedMap:
    if self.input_p is None:
      raise ValueError('input_p of DatasetInputSpecsProvider is not set')
    batch = self.input_p.Instantiate().get_next_padded()
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, np.asarray(x).dtype), batch
    )


def _pad_rows(batch: NestedMap, rows: int) -> NestedMap:
  if not rows:
    return batch
  return jax.tree.map(
    lambda x: np.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1)), batch
  )


def _rebuild(
  params: pax_fiddle.Config[BaseInput], state: State | None
) -> BaseInput:
  built = params.Instantiate()
  if state is not None:
    built.set_state(state)
  return built
