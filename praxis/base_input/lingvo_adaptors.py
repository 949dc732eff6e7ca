# SPDX-License-Identifier: Apache-2.0
"""Inputs whose batches come from input generators of Lingvo.

The generators run in TensorFlow, which is imported with the first input. They
have no state that could be saved, so these inputs are not resumable.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from absl import logging

from praxis import (
  base_hyperparams,
  lingvo_lib,
  pax_fiddle,
  py_utils,
  pytypes,
)
from praxis.base_input.input_pipeline import BaseInput, end_of_data_errors

NestedMap = py_utils.NestedMap


class LingvoInputAdaptor(BaseInput):
  """Batches of an input generator of Lingvo.

  The generator shards the data, or does not: it finds `infeed_host_index` and
  `num_infeed_hosts` in `cluster.GetInfeedContext()`. A generator with a fixed
  `file_random_seed` gets another seed on each host.
  """

  _VALIDATE_BATCH_SIZE_NOT_NONE = False
  # Whether `batch_size` must stay None.
  _VALIDATE_BATCH_SIZE_NONE = True

  # The params of the generator.
  input: Any = None
  # Number of batches until the data ends, for `reset_for_eval`; None or a
  # number below 1: the end of the generator.
  num_batches: int | None = None
  # Whether `input.file_random_seed` may be other than 0 (a random seed).
  allow_fixed_file_random_seed: bool = False
  # Whether `do_eval` of Lingvo's cluster is set for inputs that are not for
  # training. The order is sequential then, and generators of tf.data end after
  # an epoch.
  cluster_do_eval: bool = False
  # The generator.
  input_inst: Any = dataclasses.field(default=None, init=False, repr=False)

  def __post_init__(self):
    if self.input is None:
      raise ValueError(
        f'input of {type(self).__name__} is not set; it is the params of an'
        ' input generator of Lingvo'
      )
    if self._VALIDATE_BATCH_SIZE_NONE and self.batch_size is not None:
      raise ValueError(
        f'{type(self).__name__} does not support self.batch_size, got'
        f' {self.batch_size}; set it in self.input, as in'
        ' input.bucket_batch_limit = [4] or input.args.batch = 4'
      )
    self._check_file_random_seed()
    self.name = self.name or self.input.name
    super().__post_init__()
    self._input_params = self.input
    self._tf = _tensorflow()
    self._cluster = self._make_cluster()
    self._initialize()

  @classmethod
  def get_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    """Returns the batch size of the generator's params.

    It is 0 if only the generator's dataset determines it.

    Raises:
      ValueError: `params.input` has no field for it.
    """
    if hasattr(params.input, 'bucket_batch_limit'):
      return params.input.bucket_batch_limit[0]
    if hasattr(params.input, 'batch_size'):
      return params.input.batch_size
    raise ValueError(
      f'input of {cls.__name__} has neither bucket_batch_limit nor batch_size'
    )

  def get_next(self) -> NestedMap:
    if self.num_batches is not None and self.num_batches > 0:
      if self._num_batches_produced >= self.num_batches:
        raise _end_of_data(
          f'num_batches exceeding {self._num_batches_produced}'
        )
      self._num_batches_produced += 1
    batch = _to_numpy(self._get_next_fn())
    num_rows = len(jax.tree.leaves(batch)[0])
    batch.eval_sample_weights = np.ones([num_rows], np.float32)
    return batch

  def reset(self) -> None:
    super().reset()
    if self._is_tf_data:
      self.input_inst.datasource.Reset()
      self._num_batches_produced = 0
    else:
      self._initialize()

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    """Returns the detokenized text of each row of `ids`."""
    texts = self.input_inst.IdsToStrings(ids, lengths, key=key)
    texts = texts.numpy() if hasattr(texts, 'numpy') else texts
    return [text.decode('utf-8') for text in texts]

  def _initialize(self) -> None:
    """Makes the generator, which begins with its first batch."""
    # A copy: the seed of a host does not accumulate over resets.
    self.input = self._input_params.Copy()
    self._update_file_random_seed()
    with self._infeed_context(), self._cluster:
      self.input_inst = self.input.Instantiate()
    # `tf.function` would read an iterator of tf.data at other times than the
    # calls.
    self._get_next_fn: Callable[[], Any] = (
      self._get_batch
      if self._is_tf_data
      else self._tf.function(self._get_batch)
    )
    self._num_batches_produced = 0

  def _update_file_random_seed(self) -> None:
    """Gives each host a seed of its own."""
    if getattr(self.input, 'file_random_seed', 0):
      self.input.file_random_seed += self.infeed_host_index

  def _get_batch(self) -> Any:
    """Returns the generator's next batch of tensors."""
    with self._infeed_context(), self._cluster:
      batch = self.input_inst.GetPreprocessedInputBatch()
    # Strings of evaluations pass by the devices, on one host.
    if self.is_training or self.num_infeed_hosts > 1:
      return batch.Filter(lambda tensor: tensor.dtype != self._tf.string)
    return batch

  @property
  def _is_tf_data(self) -> bool:
    source = getattr(self.input_inst, 'datasource', None)
    return isinstance(source, lingvo_lib.datasource.TFDatasetSource)

  def _infeed_context(self) -> Any:
    return lingvo_lib.infeed_context_scope(
      self.infeed_host_index, self.num_infeed_hosts
    )

  def _make_cluster(self) -> Any:
    """Returns Lingvo's cluster in which the generator runs."""
    cluster = copy.deepcopy(lingvo_lib.current_cluster())
    cluster.params.xla_device = 'tpu'
    cluster.params.enable_asserts = False
    cluster.params.do_eval = not self.is_training and self.cluster_do_eval
    cluster.params.tf_data_service_address = self.tf_data_service_address
    return cluster

  def _check_file_random_seed(self) -> None:
    seed = getattr(self.input, 'file_random_seed', 0)
    if seed and not self.allow_fixed_file_random_seed:
      raise ValueError(
        f'input.file_random_seed of {type(self).__name__} is {seed}: a fixed'
        ' seed may give each host the same batches, and repeats the data after'
        ' a restart; set input.file_random_seed = 0, or'
        ' allow_fixed_file_random_seed = True'
      )


class LingvoInputAdaptorNewBatchSize(LingvoInputAdaptor):
  """Cuts the batches of a generator into smaller ones of `batch_size`.

  For generators that pack better with large batches. `batch_size` divides the
  batch size of the generator.
  """

  _VALIDATE_BATCH_SIZE_NOT_NONE = True
  _VALIDATE_BATCH_SIZE_NONE = False

  def __post_init__(self):
    super().__post_init__()
    self._read_batch()
    self._inner_batch_size = len(jax.tree.leaves(self._current_batch)[0])
    if self._inner_batch_size % self.get_batch_size(self):
      raise ValueError(
        f'the batch size of the Lingvo input, {self._inner_batch_size}, must be'
        f' a multiple of self.batch_size = {self.batch_size}'
      )

  @classmethod
  def get_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    return super(LingvoInputAdaptor, cls).get_batch_size(params)

  def get_next(self) -> NestedMap:
    if self._next_row >= self._inner_batch_size:
      self._read_batch()
    start = self._next_row
    self._next_row += self.get_batch_size(self)
    return jax.tree.map(
      lambda x: x[start : self._next_row], self._current_batch
    )

  def reset(self) -> None:
    super().reset()
    self._read_batch()

  def _read_batch(self) -> None:
    self._current_batch = super().get_next()
    self._next_row = 0


class LingvoEvalAdaptor(LingvoInputAdaptor):
  """One epoch of a finite generator, padded to full batches on all hosts.

  Reads all examples into memory. The generator returns them in the same order
  on every host; a batch size of 1 keeps the examples of a partial last batch.
  Rows of padding have `eval_sample_weights` 0. Batch i of the epoch is that of
  host i modulo `num_infeed_hosts`.
  """

  _VALIDATE_BATCH_SIZE_NOT_NONE = True
  _VALIDATE_BATCH_SIZE_NONE = False

  def __post_init__(self):
    super().__post_init__()
    _check_eval(self)
    rows = self._read_epoch()
    self._num_samples = len(rows.eval_sample_weights)
    logging.info('Input %r has %d examples', self.name, self._num_samples)
    self._rows = _pad_epoch(rows, self.get_global_batch_size(self))
    self._next_batch = self.infeed_host_index

  @classmethod
  def get_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    return super(LingvoInputAdaptor, cls).get_batch_size(params)

  @property
  def num_samples(self) -> int:
    """The number of examples on all hosts, without padding."""
    return self._num_samples

  def get_next(self) -> NestedMap:
    batch_size = self.get_batch_size(self)
    start = self._next_batch * batch_size
    if start >= len(self._rows.eval_sample_weights):
      raise StopIteration
    self._next_batch += self.num_infeed_hosts
    return jax.tree.map(lambda x: x[start : start + batch_size], self._rows)

  def reset(self) -> None:
    BaseInput.reset(self)
    self._next_batch = self.infeed_host_index

  def _update_file_random_seed(self) -> None:
    """Keeps the seed: all hosts read the same examples."""

  def _read_epoch(self) -> NestedMap:
    self._check_finite()
    batches = []
    while True:
      try:
        batches.append(super().get_next())
      except end_of_data_errors():
        break
    if not batches:
      raise ValueError(f'the generator of {self.name!r} has no examples')
    try:
      return jax.tree.map(lambda *x: np.concatenate(x), *batches)
    except ValueError as e:
      raise ValueError(
        f'the batches of {self.name!r} have different shapes ({e}); pad the'
        ' examples to one length, as with one bucket'
      ) from e

  def _check_finite(self) -> None:
    if not self._is_tf_data or (self.num_batches or 0) > 0:
      return
    with self._infeed_context(), self._cluster:
      cardinality = self.input_inst.datasource.GetDataset().cardinality()
    if cardinality == self._tf.data.INFINITE_CARDINALITY:
      raise ValueError(
        f'the generator of {self.name!r} repeats its data, and'
        f' {type(self).__name__} reads all of it; set cluster_do_eval = True or'
        ' num_batches'
      )


class LingvoLazyEvalAdaptor(LingvoInputAdaptor):
  """One epoch of a generator that repeats, without reading it into memory.

  The generator has `num_samples` and `batch_size` in its params, and returns
  the examples in the same order on every host. A host skips the batches of the
  others; rows after the last example have `eval_sample_weights` 0.
  """

  # Set from the generator.
  batch_size: int | None = dataclasses.field(
    default=None, init=False, repr=False
  )
  # Number of batches of each host.
  computed_num_batches: int = dataclasses.field(
    default=0, init=False, repr=False
  )

  def __post_init__(self):
    super().__post_init__()
    _check_eval(self)
    size = self.input.batch_size
    if not isinstance(size, int) or size <= 0:
      raise ValueError(
        f'input.batch_size of {self.name!r} must be positive, got {size!r}'
      )
    self.batch_size = self.get_batch_size(self)
    total, hosts = self.input.num_samples, self.num_infeed_hosts
    # Full batches of the last, partial round belong to the first hosts.
    rounds, remainder = divmod(total, size * hosts)
    own_remainder = remainder - self.infeed_host_index * size
    self._num_samples = rounds * size + min(max(own_remainder, 0), size)
    self.computed_num_batches = rounds + bool(remainder)
    if self.num_batches is not None:
      self._limit_num_batches(self.num_batches)
    self.reset()

  @property
  def num_samples(self) -> int:
    """The number of examples of this host, without padding."""
    return self._num_samples

  def get_next(self) -> NestedMap:
    if self._num_batches_emitted == self.computed_num_batches:
      raise _end_of_data(
        f'{self.computed_num_batches} batches have been exhausted.'
      )
    remaining = self._num_samples - self._num_examples_emitted
    batch = super().get_next()
    num_valid = min(self.batch_size, remaining)
    batch.eval_sample_weights[num_valid:] = 0.0
    self._num_batches_emitted += 1
    self._num_examples_emitted += num_valid
    if remaining > num_valid:
      self._skip_batches(self.num_infeed_hosts - 1)
    return batch

  def reset(self) -> None:
    super().reset()
    self._skip_batches(self.infeed_host_index)
    self._num_examples_emitted = self._num_batches_emitted = 0

  def _update_file_random_seed(self) -> None:
    """Keeps the seed: all hosts read the same examples."""

  def _skip_batches(self, count: int) -> None:
    for _ in range(count):
      self._get_next_fn()

  def _limit_num_batches(self, limit: int) -> None:
    if 0 < limit <= self.computed_num_batches:
      self.computed_num_batches = limit
      return
    logging.warning(
      'num_batches = %d of %r is ignored: it must be between 1 and the %d'
      ' batches of an epoch',
      limit,
      self.name,
      self.computed_num_batches,
    )


def _check_eval(adaptor: LingvoInputAdaptor) -> None:
  if adaptor.is_training or not adaptor.reset_for_eval:
    raise ValueError(
      f'{type(adaptor).__name__} requires is_training=False and'
      f' reset_for_eval=True, got {adaptor.is_training} and'
      f' {adaptor.reset_for_eval}'
    )


def _pad_epoch(rows: NestedMap, multiple: int) -> NestedMap:
  """Appends copies of the first row with weight 0, up to a multiple."""
  count = -len(rows.eval_sample_weights) % multiple
  if not count:
    return rows
  padded = jax.tree.map(
    lambda x: np.concatenate([x, np.repeat(x[:1], count, axis=0)]), rows
  )
  padded.eval_sample_weights[-count:] = 0.0
  return padded


def _to_numpy(value: Any) -> Any:
  """Returns tensors as arrays, and Lingvo's maps as ours."""
  if isinstance(value, dict):
    return NestedMap({k: _to_numpy(v) for k, v in value.items()})
  if isinstance(value, list | tuple):
    return type(value)(_to_numpy(v) for v in value)
  return value.numpy()


def _tensorflow() -> Any:
  """Returns TensorFlow, which leaves the accelerators to JAX."""
  tf = importlib.import_module('tensorflow')
  for kind in ('GPU', 'TPU'):
    try:
      tf.config.set_visible_devices([], kind)
    except RuntimeError:
      # TensorFlow has been initialized before.
      pass
  return tf


def _end_of_data(message: str) -> Exception:
  return _tensorflow().errors.OutOfRangeError(None, None, message)
