# SPDX-License-Identifier: Apache-2.0
"""Input pipelines: iterators of host batches with a checkpointable state.

There is one input object per process and dataset. Its state identifies the next
batch, so that a restarted run continues with the batch it would have read.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import jax
import numpy as np

from praxis import (
  base_hyperparams,
  pax_fiddle,
  py_utils,
  pytypes,
  value_domains,
)
from praxis.base_input import data_fingerprints, input_files
from praxis.pytypes import Nested

NestedMap = py_utils.NestedMap
# A dict of values of JSON and bytes, or bytes.
State: TypeAlias = Any

# Key of bytes in the JSON text of a state.
_BYTES_KEY = '__bytes__'
# Keys of a state of files, and of a state with a number of batches after it.
_FILES_KEY = '__files__'
_STATE_KEY, _NUM_BATCHES_KEY = '__state__', '__num_batches__'
# Key of the batch that was peeked before a state.
_PEEKED_KEY = '__peeked__'

# Names of inputs become parts of directories and of summary tags.
VALID_NAME = re.compile(r'[a-zA-Z0-9.:_+-]+')


class Vocabulary(NamedTuple):
  """A mapping between text and ids, for comparison."""

  # Equal for equal mappings, such as a checksum of the model file.
  digest: str
  # Where it comes from, such as the path of the file, for messages.
  source: str


def state_to_json(state: State) -> str:
  """Returns the JSON text of a state, with bytes in base 64."""

  def encode(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes):
      raise TypeError(
        'the state of an input must have values of JSON or bytes, got'
        f' {value!r}'
      )
    return {_BYTES_KEY: base64.b64encode(value).decode()}

  return json.dumps(state, default=encode)


def state_from_json(text: str) -> State:
  """Returns the state of a text from `state_to_json`."""

  def decode(fields: dict[str, Any]) -> State:
    if fields.keys() == {_BYTES_KEY}:
      return base64.b64decode(fields[_BYTES_KEY])
    return fields

  return json.loads(text, object_hook=decode)


def advance_state(state: State, num_batches: int) -> State:
  """Returns the state that is `num_batches` batches after `state`."""
  return {_STATE_KEY: state, _NUM_BATCHES_KEY: num_batches}


class UnknownStateError(ValueError, NotImplementedError):
  """A batch was peeked from an input that is not resumable."""


class BaseInput(base_hyperparams.FiddleBaseParameterizable):
  """Batches of numpy arrays whose first dimension is the batch of one host.

  Subclasses define `get_next` and `reset`. With `_get_state_internal` and
  `_set_state_internal` an input is also resumable; with `save` and `restore`,
  too, by its files.

  Different hosts must emit different training batches. A finite input must end
  after the same number of batches on all hosts.
  """

  # Whether `batch_size` is required.
  _VALIDATE_BATCH_SIZE_NOT_NONE: ClassVar[bool] = True
  # How to change a property of `data_fingerprint` on the way, by its name, for
  # the error that it changed.
  CHANGE_ADVICE: ClassVar[Mapping[str, str]] = {}

  # Examples per batch and host.
  batch_size: int | None = value_domains.field(None, ge=1)
  # Number of hosts that read, and the index of this one. 0 hosts: the trainer
  # sets both to those of the run's processes.
  num_infeed_hosts: int = value_domains.field(0, ge=0)
  infeed_host_index: int = value_domains.field(0, ge=0)
  # Seed of the shuffle, for inputs that shuffle.
  input_random_seed: int | None = None
  # Whether each evaluation resets the input and reads one epoch.
  reset_for_eval: bool = False
  # Otherwise: the number of batches in an evaluation, which continues after the
  # previous one; None or -1: all batches.
  eval_loop_num_batches: int | None = 1
  # Whether this is training data, which repeats and is never reset.
  is_training: bool = False
  # Whether one host reads for all; supported with one process only.
  experimental_remote_input: bool = False
  # Number of rows of zeros that `get_next_padded` appends.
  batch_padding_size: int = value_domains.field(0, ge=0)
  # Accepted and ignored: the mesh determines the order of devices.
  custom_device_order: Sequence[int] | None = None
  # Accepted and ignored: checkpoints always contain the state of a resumable
  # training input.
  input_checkpointing_enabled: bool = False
  # Accepted and ignored: no input of Pax uses a tf.data service; a subclass may
  # read it.
  tf_data_service_address: str | None = None
  # The tf.data.Dataset of the batches, if a subclass assigns it;
  # DatasetInputSpecsProvider reads its shapes.
  dataset: Any = dataclasses.field(default=None, init=False, repr=False)

  def __post_init__(self):
    super().__post_init__()
    self._peeked: NestedMap | None = None
    self._state_before_peek: State | None = None
    self.name = self.name or ('train' if self.is_training else 'input')
    self.num_infeed_hosts = self.num_infeed_hosts or 1
    self._check_fields()

  @classmethod
  def get_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    """Returns the batch size of one host.

    Raises:
      ValueError: batch_size is not set.
    """
    if params.batch_size is None:
      raise ValueError(
        f'self.batch_size of {cls.__name__} is not set; it is the number of '
        'examples per batch and host'
      )
    return params.batch_size

  @classmethod
  def get_global_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    """Returns the batch size over all hosts."""
    input_cls = getattr(params, 'cls', cls)
    return input_cls.get_batch_size(params) * (params.num_infeed_hosts or 1)

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      NotImplementedError: a subclass must define it.
      StopIteration: a finite dataset has ended.
    """
    raise NotImplementedError(f'{type(self).__name__} lacks get_next')

  def reset(self) -> None:
    """Discards a peeked batch; subclasses restart at the first batch."""
    self._peeked = self._state_before_peek = None

  def get_child(self, input_name: str) -> BaseInput:
    """Returns the component input of that name.

    Raises:
      NotImplementedError: the input has no components.
    """
    raise NotImplementedError(f'{type(self).__name__} has no children')

  def get_next_padded(self) -> NestedMap:
    """Returns the peeked or next batch, padded by batch_padding_size rows."""
    if self._peeked is not None:
      batch, self._peeked, self._state_before_peek = self._peeked, None, None
      return batch
    return pad_rows(self.get_next(), self.batch_padding_size)

  def peek_padded(self) -> NestedMap | None:
    """Returns the batch that `get_next_padded` will return, None at the end.

    Raises:
      TypeError: `get_next` returns no NestedMap.
    """
    if self._peeked is not None:
      return self._peeked
    state = None if self.has_large_state else self._state_or_none()
    try:
      batch = pad_rows(self.get_next(), self.batch_padding_size)
    except end_of_data_errors():
      return None
    if not isinstance(batch, NestedMap):
      raise TypeError(
        f'get_next of {type(self).__name__} must return a NestedMap of arrays,'
        f' got a {type(batch).__name__}; return py_utils.NestedMap(...)'
      )
    self._peeked, self._state_before_peek = batch, state
    return batch

  @property
  def has_large_state(self) -> bool:
    """Whether the state is expensive to get, such as files of `save`."""
    return self._has_file_state

  @property
  def _has_file_state(self) -> bool:
    """Whether the state consists of the files of `save`."""
    cls = type(self)
    return (
      cls.save is not BaseInput.save
      and cls.restore is not BaseInput.restore
      and cls._get_state_internal is BaseInput._get_state_internal
    )

  def get_state(self) -> State:
    """Returns the position in the data: a small dict of JSON values, or bytes.

    A large state has the peeked batch itself.

    Raises:
      UnknownStateError: the input is not resumable, and a batch was peeked.
      NotImplementedError: the input is not resumable.
    """
    if self._peeked is None or self.has_large_state:
      position = self._get_state_internal()
    elif self._state_before_peek is None:
      raise UnknownStateError(
        f'the state of {self.name!r} before its peeked batch is unknown; give '
        f'{type(self).__name__} _get_state_internal, or take the batch first'
      )
    else:
      position = self._state_before_peek
    fingerprint = self.data_fingerprint_before(position)
    state = position
    if self._peeked is not None and self.has_large_state:
      state = {_STATE_KEY: position, _PEEKED_KEY: _batch_to_state(self._peeked)}
    return data_fingerprints.attach(state, fingerprint)

  def set_state(self, state: State) -> None:
    """Restores the position of `get_state`.

    Raises:
      ChangedDataError: the state belongs to other data.
    """
    self._peeked = self._state_before_peek = None
    state, num_batches = _unwrap(state, _NUM_BATCHES_KEY)
    state, fingerprint = data_fingerprints.detach(state)
    state, peeked = _unwrap(state, _PEEKED_KEY)
    if fingerprint:
      current = self.data_fingerprint_before(state)
      data_fingerprints.check(
        self.name, fingerprint, current, self.CHANGE_ADVICE
      )
    self._set_state_internal(state)
    if peeked is not None:
      self._peeked = _batch_from_state(peeked)
    for _ in range(num_batches or 0):
      self.get_next_padded()

  def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Writes the state to a JSON file."""
    with open(checkpoint_path, 'w', encoding='utf-8') as f:
      f.write(state_to_json(self.get_state()))

  def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Restores the state from a file that `save` wrote."""
    with open(checkpoint_path, encoding='utf-8') as f:
      self.set_state(state_from_json(f.read()))

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    """Returns the detokenized text of each row of `ids`.

    Args:
      ids: token ids of shape [B, T].
      lengths: number of valid tokens of each row, shape [B].
      key: the name of the vocabulary, for inputs with several.

    Raises:
      NotImplementedError: the input has no vocabulary.
    """
    raise NotImplementedError(f'{type(self).__name__} has no vocabulary')

  def vocabularies(self) -> Mapping[str, Vocabulary]:
    """Returns the vocabularies whose ids the batches hold, by feature.

    A job compares them with those that it was trained with. An input of ids
    from elsewhere has none.
    """
    return {}

  def vocabulary_sizes(self) -> Mapping[str, int]:
    """Returns the number of ids of each vocabulary that declares it.

    A training job compares them with the vocabulary size of a language model.
    """
    return {}

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    """Returns the properties that determine the data and their order.

    A state is not restored if they have other values. Constant and cheap, as
    every state has them; {} accepts the states of any data.
    """
    return {}

  def data_fingerprint_before(
    self, state: State
  ) -> data_fingerprints.Fingerprint:
    """Returns those of `data_fingerprint` for the examples before a state.

    Override it in inputs whose data of later examples may change.

    Args:
      state: A position in the data, without its fingerprint.
    """
    del state
    return self.data_fingerprint()

  def derived_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns further metrics computed from those of a step or evaluation."""
    del metrics
    return {}

  def reshard_for_pmap(self, arrays: Nested[Any]) -> Nested[Any]:
    """Reshapes host arrays [B, ...] to [local devices, B / devices, ...].

    Raises:
      ValueError: the devices do not divide B.
    """
    devices = jax.local_device_count()

    def split(x):
      if x.shape[0] % devices:
        raise ValueError(
          f'a batch of {x.shape[0]} is not divisible by {devices} devices; '
          'change batch_size or set batch_padding_size'
        )
      return x.reshape(devices, x.shape[0] // devices, *x.shape[1:])

    return jax.tree.map(split, arrays)

  def reshard_for_spmd(
    self,
    arrays: NestedMap,
    global_mesh: jax.sharding.Mesh,
    pspecs: Nested[jax.sharding.PartitionSpec],
  ) -> NestedMap:
    """Returns global arrays, sharded by `pspecs`, from each host's rows."""

    def place(x, spec):
      sharding = jax.sharding.NamedSharding(global_mesh, spec)
      shape = (x.shape[0] * self.num_infeed_hosts, *x.shape[1:])
      return jax.make_array_from_process_local_data(sharding, x, shape)

    return jax.tree.map(place, arrays, pspecs)

  def _get_state_internal(self) -> State:
    if self._has_file_state:
      return {_FILES_KEY: input_files.read_saved(self.save)}
    raise NotImplementedError(
      f'{type(self).__name__} is not resumable: it does not define '
      '_get_state_internal'
    )

  def _set_state_internal(self, state: State) -> None:
    if self._has_file_state:
      input_files.restore_from(state[_FILES_KEY], self.restore)
      return
    raise NotImplementedError(
      f'{type(self).__name__} is not resumable: it does not define '
      '_set_state_internal'
    )

  def _state_or_none(self) -> State | None:
    try:
      return self._get_state_internal()
    except NotImplementedError:
      return None

  def _check_end(self, repeats: bool) -> None:
    """Checks that an epoch of evaluation ends.

    Args:
      repeats: Whether the data repeat.

    Raises:
      ValueError: An evaluation with `reset_for_eval` would have no end.
    """
    if repeats and self.reset_for_eval and not self.is_training:
      raise ValueError(
        f'the data of {self.name!r} must end with reset_for_eval=True, which'
        ' reads one epoch, but they repeat; leave out repeat, or set'
        ' reset_for_eval=False and eval_loop_num_batches'
      )

  def _check_fields(self) -> None:
    if not VALID_NAME.fullmatch(self.name):
      raise ValueError(
        f'name must match {VALID_NAME.pattern}, got {self.name!r}; it becomes '
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
        'experimental_remote_input supports one process only; unset it'
      )
    if not self._VALIDATE_BATCH_SIZE_NOT_NONE:
      return
    if type(self).get_batch_size(self.hparams) < 1:
      raise ValueError(
        f'batch_size of {self.name!r} must be at least 1, got {self.batch_size}'
      )

  def __reduce__(self):
    try:
      state = self.get_state()
    except NotImplementedError:
      state = None
    return _rebuild, (self.hparams.clone(), state)


def end_of_data_errors() -> tuple[type[Exception], ...]:
  """Returns the errors by which `get_next` says that the data has ended.

  `StopIteration`, and that of TensorFlow if it is imported.
  """
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is None:
    return (StopIteration,)
  return StopIteration, tensorflow.errors.OutOfRangeError


def pad_rows(batch: NestedMap, rows: int) -> NestedMap:
  """Returns a batch with further rows of zeros."""
  if not rows:
    return batch
  return jax.tree.map(
    lambda x: np.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1)), batch
  )


def _unwrap(state: State, key: str) -> tuple[State, Any]:
  """Returns a state without the value of a key around it, and the value."""
  if isinstance(state, dict) and state.keys() == {_STATE_KEY, key}:
    return state[_STATE_KEY], state[key]
  return state, None


def _batch_to_state(batch: NestedMap) -> State:
  """Returns the data type, shape and bytes of each array of a batch.

  Raises:
    UnknownStateError: the batch has text.
  """
  arrays = {key: np.asarray(x) for key, x in batch.FlattenItems()}
  if texts := [key for key, x in arrays.items() if x.dtype.hasobject]:
    raise UnknownStateError(
      f'the state before a peeked batch with text, {texts}, is unknown; take '
      'the batch first'
    )
  return {
    key: [_dtype_text(x.dtype), list(x.shape), x.tobytes()]
    for key, x in arrays.items()
  }


def _dtype_text(dtype: np.dtype) -> str:
  """Returns a text of which `np.dtype` makes the same dtype."""
  # bfloat16 and others of ml_dtypes have the text of bytes without a type.
  return dtype.str if np.dtype(dtype.str) == dtype else dtype.name


def _batch_from_state(state: State) -> NestedMap:
  batch = NestedMap()
  for key, (dtype, shape, content) in state.items():
    batch.Set(key, np.frombuffer(content, dtype).reshape(shape))
  return batch


def _rebuild(
  params: pax_fiddle.Config[BaseInput], state: State | None
) -> BaseInput:
  built = params.Instantiate()
  if state is not None:
    built.set_state(state)
  return built
