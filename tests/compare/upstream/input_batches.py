# SPDX-License-Identifier: Apache-2.0
"""Prints what inputs return, as JSON, with the praxis on the path.

    PYTHONPATH=CHECKOUTS python input_batches.py OUTPUT.json

Upstream's and our praxis run in upstream's interpreter, which has Lingvo.
"""

from __future__ import annotations

import importlib
import itertools
import json
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from praxis import base_input, pax_fiddle, py_utils

NestedMap = py_utils.NestedMap
_OPS = 'lingvo.core.ops.gen_x_ops'


class _MissingOps(types.ModuleType):
  """Lingvo's compiled operations, which only some systems load."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    return None


sys.modules[_OPS] = _MissingOps(_OPS)
base_input_generator = importlib.import_module(
  'lingvo.core.base_input_generator'
)
cluster = importlib.import_module('lingvo.core.cluster')
lingvo_py_utils = importlib.import_module('lingvo.core.py_utils')


class Counted(base_input.BaseInput):
  """Rows of consecutive numbers."""

  num_batches: int = 3

  def __post_init__(self):
    super().__post_init__()
    self._count = 0

  def get_next(self):
    if self._count == self.num_batches:
      raise StopIteration
    self._count += 1
    rows = np.arange(self.batch_size) + 10 * self._count
    return NestedMap(
      x=rows, y=NestedMap(z=np.float32(rows)[:, None] / self.num_infeed_hosts)
    )

  def reset(self):
    super().reset()
    self._count = 0


class Resumable(Counted):
  def _get_state_internal(self):
    return str(self._count).encode()

  def _set_state_internal(self, state):
    self._count = int(state.decode())


def _numbers(num: int, batch: int, seed: int = 0) -> tf.data.Dataset:
  context = cluster.GetInfeedContext()
  dataset = tf.data.Dataset.range(num).batch(batch)
  return dataset.map(
    lambda i: {
      'data': i,
      'seed': tf.fill(tf.shape(i), seed),
      'host': tf.fill(tf.shape(i), context.infeed_host_index),
      'text': tf.strings.as_string(i),
    }
  )


class _Seeded(base_input_generator.BaseInputGenerator):
  @classmethod
  def Params(cls):
    params = super().Params()
    params.Define('file_random_seed', 0, 'Seed.')
    return params


Numbers = base_input_generator.DefineTFDataInput(
  'Numbers',
  _numbers,
  map_args={'seed': 'file_random_seed'},
  base_class=_Seeded,
)


class Counter(base_input_generator.BaseInputGenerator):
  """Batches that a graph computes."""

  def __init__(self, params):
    super().__init__(params)
    self._count = tf.Variable(0)

  def _InputBatch(self):
    size = self.params.batch_size
    first = (self._count.assign_add(1) - 1) * size
    # The values at the end of the samples are those of the first ones.
    data = (first + tf.range(size)) % max(self.params.num_samples, 1)
    return lingvo_py_utils.NestedMap(
      data=data, eval_sample_weights=tf.ones([size])
    )


def _values(batch: Any) -> Any:
  if isinstance(batch, dict):
    return {k: _values(v) for k, v in sorted(batch.items())}
  batch = np.asarray(batch)
  values = batch.astype(str) if batch.dtype == object else batch
  return [str(batch.dtype), values.tolist()]


def _call(function: Callable[[], Any]) -> Any:
  """Returns the result, or the kind of the error."""
  try:
    return function()
  except tf.errors.OutOfRangeError:
    return 'OutOfRangeError'
  except StopIteration:
    return 'StopIteration'
  except (AssertionError, NotImplementedError, ValueError) as e:
    # Assertions of upstream are errors of users.
    name = type(e).__name__
    return 'ValueError' if isinstance(e, (AssertionError, ValueError)) else name


def _read(config: Any, *calls: str) -> Any:
  """Returns the results of calls of a new input: next, peek, reset, ..."""
  made: list[Any] = []

  def make():
    made.append(config.clone().Instantiate())

  if error := _call(make):
    return error
  (inp,) = made
  functions = {
    'next': lambda: _values(inp.get_next()),
    'padded': lambda: _values(inp.get_next_padded()),
    'peek': lambda: _values(inp.peek_padded()),
    'reset': inp.reset,
    'state': lambda: inp.get_state().decode(),
    'restore': lambda: inp.set_state(b'1'),
    'samples': lambda: int(inp.num_samples),
    'batches': lambda: int(inp.computed_num_batches),
    'sizes': lambda: [inp.get_batch_size(inp), inp.name],
  }
  return [_call(functions[call]) for call in calls]


_TWICE = ('next',) * 5 + ('reset',) + ('next',) * 2


def _base_inputs() -> Iterator[tuple[str, Any]]:
  calls = (
    'padded',
    'peek',
    'state',
    'padded',
    'state',
    'peek',
    'reset',
    'padded',
  )
  for cls, padding, hosts in itertools.product(
    (Counted, Resumable), (0, 2), (1, 3)
  ):
    p = pax_fiddle.Config(
      cls, batch_size=4, batch_padding_size=padding, num_infeed_hosts=hosts
    )
    key = f'{cls.__name__} {padding} {hosts}'
    yield key, _read(p, *calls, 'sizes')
    yield f'{key} end', _read(p, *['padded'] * 3, 'peek', 'padded', 'peek')
    yield f'{key} restore', _read(p, 'peek', 'restore', 'padded', 'state')
    yield f'{key} global', cls.get_global_batch_size(p)
  for fields in (
    {'batch_size': None},
    {'name': 'a b'},
    {'eval_loop_num_batches': -2},
    {'is_training': True},
  ):
    p = pax_fiddle.Config(Counted, **{'batch_size': 2} | fields)
    yield f'Counted {fields}', _read(p, 'sizes')


def _multi_inputs() -> Iterator[tuple[str, Any]]:
  for sizes in ((4, 6), (3, 3), (2,), (5, 10)):
    for fields in ({}, {'reset_for_eval': True}, {'batch_size': 2}):
      children = {
        f'i{n}': pax_fiddle.Config(Resumable, batch_size=size)
        for n, size in enumerate(sizes)
      }
      p = pax_fiddle.Config(
        base_input.MultiInput, input_to_params=children, **fields
      )
      yield f'MultiInput {sizes} {fields}', _read(p, *_TWICE)


def _params(num: int, batch: int, seed: int = 0) -> Any:
  params = Numbers.Params().Set(file_random_seed=seed)
  params.args.Set(num=num, batch=batch)
  return params


def _adaptors() -> Iterator[tuple[str, Any]]:
  for training, do_eval, hosts, seed, fixed in itertools.product(
    (True, False), (True, False), (1, 2), (0, 5), (True, False)
  ):
    p = pax_fiddle.Config(
      base_input.LingvoInputAdaptor,
      input=_params(3, 1, seed),
      is_training=training,
      cluster_do_eval=do_eval,
      num_infeed_hosts=hosts,
      infeed_host_index=hosts - 1,
      allow_fixed_file_random_seed=fixed,
    )
    key = f'adaptor {training} {do_eval} {hosts} {seed} {fixed}'
    yield key, _read(p, *_TWICE)
    yield f'{key} limited', _read(p.clone().set(num_batches=2), *_TWICE)
  for inner, outer in ((4, 2), (4, 4), (4, 3), (6, None)):
    p = pax_fiddle.Config(
      base_input.LingvoInputAdaptorNewBatchSize,
      input=_params(12, inner),
      batch_size=outer,
      num_batches=2,
    )
    yield f'new batch size {inner} {outer}', _read(p, *_TWICE, 'sizes')


def _eval_adaptors() -> Iterator[tuple[str, Any]]:
  for num, batch, hosts, inner in itertools.product(
    (1, 11, 12), (1, 3), (1, 2, 3), (1, 2)
  ):
    for host in range(hosts):
      fields = {
        'is_training': False,
        'reset_for_eval': True,
        'num_infeed_hosts': hosts,
        'infeed_host_index': host,
      }
      key = f'{num} {batch} {hosts} {inner} {host}'
      p = pax_fiddle.Config(
        base_input.LingvoEvalAdaptor,
        input=_params(num, inner),
        batch_size=batch,
        cluster_do_eval=True,
        **fields,
      )
      calls = ('next',)
      yield f'eval {key}', _read(p, *calls * 13, 'reset', 'next', 'samples')
      p = pax_fiddle.Config(
        base_input.LingvoLazyEvalAdaptor,
        input=Counter.Params().Set(batch_size=batch, num_samples=num),
        num_batches=None if inner == 1 else inner,
        **fields,
      )
      calls *= 13
      yield (
        f'lazy {key}',
        _read(p, *calls, 'reset', 'next', 'samples', 'batches', 'sizes'),
      )
      if host == 0:
        for wrong in ({'is_training': True}, {'reset_for_eval': False}):
          yield f'lazy {key} {wrong}', _read(p.clone().set(**wrong), 'next')


def main(output: str) -> None:
  results = dict(
    itertools.chain(
      _base_inputs(), _multi_inputs(), _adaptors(), _eval_adaptors()
    )
  )
  pathlib.Path(output).write_text(json.dumps(results, indent=1))


if __name__ == '__main__':
  jax.config.update('jax_platforms', 'cpu')
  main(sys.argv[1])
