# SPDX-License-Identifier: Apache-2.0
"""Metrics, aggregators of losses, and trees of summaries of paxml."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxml import metric_utils, summary_utils
from praxis import base_layer, pax_fiddle, py_utils
from praxis import metric_utils as praxis_metric_utils
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, integers

base_metrics = importlib.import_module('paxml.base_metrics')


@dataclasses.dataclass
class Scalar:
  """A value like clu's, which is known by its class name where clu is not."""

  value: Any


def _clu_values() -> Any:
  """Returns clu.values, or what stands for it here: clu is no dependency."""
  try:
    return importlib.import_module('clu.values')
  except ImportError:
    return types.SimpleNamespace(
      Scalar=Scalar, Text=type('Text', (Scalar,), {})
    )


clu_values = _clu_values()
NestedMap = py_utils.NestedMap
_AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME


def _scalar(value: float) -> Any:
  return jnp.asarray(value, jnp.float32)


def _batches() -> list[dict[str, Any]]:
  return [
    {
      'loss': (_scalar(2.0 + i), _scalar(3.0 - i)),
      'accuracy': (_scalar(0.5 * i), _scalar(1.0)),
    }
    for i in range(3)
  ]


def _histograms() -> list[dict[str, Any]]:
  return [
    {
      'codes': (
        jnp.asarray(integers(2, 5, high=4, seed=i), jnp.float32),
        _scalar(1.0 + i),
      )
    }
    for i in range(3)
  ]


def _vectors() -> list[dict[str, Any]]:
  return [
    {'loss': (jnp.asarray(floats(4, seed=i)), _scalar(1.0 + i))}
    for i in range(3)
  ]


_METRICS: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
  'mean': ('MeanMetrics', {}, _batches),
  'mean of keys': ('MeanMetrics', {'metric_keys': ['loss']}, _batches),
  'mean of no such key': ('MeanMetrics', {'metric_keys': ['other']}, _batches),
  'mean of vectors': ('MeanMetrics', {}, _vectors),
  'max': ('MaxMetrics', {}, _batches),
  'max of keys': ('MaxMetrics', {'metric_keys': ['accuracy']}, _batches),
  'max of vectors': ('MaxMetrics', {}, _vectors),
  'histogram': ('HistogramMetrics', {'histogram_key': 'codes'}, _histograms),
  'histogram of all': ('HistogramMetrics', {}, _histograms),
  'composite': (
    'CompositeMetrics',
    {
      'metrics_p': [
        pax_fiddle.Config(base_metrics.MeanMetrics, metric_keys=['loss']),
        pax_fiddle.Config(base_metrics.MaxMetrics, metric_keys=['accuracy']),
      ]
    },
    _batches,
  ),
}


def _metric(name: str, fields: Mapping[str, Any]) -> Any:
  return base_layer.instantiate(
    pax_fiddle.Config(getattr(base_metrics, name), **fields)
  )


def _finalized(name: str, fields: Any, batches: Any, reshard: bool) -> Any:
  metric = _metric(name, fields)
  for batch in batches():
    metric.store(batch, reshard)
  return {'first': metric.finalize(), 'second': metric.finalize()}


def _aggregated(name: str, fields: Any, batches: Any, replicas: bool) -> Any:
  metric = _metric(name, fields)
  if not replicas:
    return metric.aggregate(batches()[1])
  stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *batches())
  return jax.vmap(metric.aggregate, axis_name=_AXIS)(stacked)


def _metrics() -> Iterator[cases.Case]:
  for label, (name, fields, batches) in _METRICS.items():
    for flag in (False, True):
      yield cases.FunctionCase(
        name=f'{label}, finalize, reshard={flag}',
        function=functools.partial(_finalized, name, fields, batches, flag),
      )
      yield cases.FunctionCase(
        name=f'{label}, aggregate, replicas={flag}',
        function=functools.partial(_aggregated, name, fields, batches, flag),
      )


def _loss_batch(clu: bool) -> dict[str, Any]:
  if not clu:
    return _batches()[1]
  create = base_metrics.WeightedScalarCluMetric.create
  return {
    'loss': create(jnp.arange(3.0), jnp.arange(3.0) + 1),
    'accuracy': create(_scalar(2.0), _scalar(0.5)),
  }


def _aggregators() -> Iterator[cases.Case]:
  for (label, (name, fields)), clu, replicas in itertools.product(
    {
      'one': ('LossAggregator', {'loss_key': 'loss'}),
      'no such key': ('LossAggregator', {'loss_key': 'other'}),
      'two': ('MultiLossAggregator', {'loss_keys': ['loss', 'accuracy']}),
      'no such keys': ('MultiLossAggregator', {'loss_keys': ['loss', 'other']}),
    }.items(),
    (False, True),
    (False, True),
  ):

    def aggregate(name: str, fields: Any, clu: bool, replicas: bool) -> Any:
      aggregator = _metric(name, fields)
      if not replicas:
        return aggregator.aggregate(_loss_batch(clu))
      stacked = jax.tree.map(
        lambda x: jnp.stack([x, 2 * x, x + 1]), _loss_batch(clu)
      )
      return jax.vmap(aggregator.aggregate, axis_name=_AXIS)(stacked)

    yield cases.FunctionCase(
      name=f'loss aggregator, {label}, clu={clu}, replicas={replicas}',
      function=functools.partial(aggregate, name, fields, clu, replicas),
    )
  yield cases.FunctionCase(
    name='loss aggregator, text',
    function=lambda: _metric('LossAggregator', {'loss_key': 'loss'}).aggregate(
      {'loss': 'text'}
    ),
  )


def _weighted_scalar() -> Iterator[cases.Case]:
  create = base_metrics.WeightedScalarCluMetric.create
  first = functools.partial(create, jnp.arange(3.0), jnp.arange(3.0) + 1)
  second = functools.partial(create, jnp.ones(2), jnp.full(2, 0.5))
  for name, function in {
    'create': first,
    'merge': lambda: first().merge(second()),
    'compute': lambda: first().merge(second()).compute(),
    'compute_value': lambda: first().compute_value().value,
    'no weight': lambda: create(jnp.ones(2), jnp.zeros(2)).compute(),
    'leaves': lambda: jax.tree.leaves(first()),
  }.items():
    yield cases.FunctionCase(
      name=f'WeightedScalarCluMetric, {name}', function=function
    )


class _Valued:
  """A metric that computes the given clu values."""

  def __init__(self, value: Any):
    self.value = value

  def compute_value(self) -> Any:
    return self.value


def _value(x: Any) -> Any:
  return {
    k: f'{type(v).__name__}({getattr(v, "value", None)})' for k, v in x.items()
  }


_VALUES: dict[str, Any] = {
  'float': 1.5,
  'int': 3,
  'bool': True,
  'numpy': np.float32(2),
  'vector': np.float32([1, 2]),
  'jax': jnp.ones(()),
  'jax vector': jnp.ones(2),
  'weighted': (np.float32(1), np.float32(2)),
  'weighted jax': (jnp.ones(()), jnp.ones(())),
  'weighted list': [(np.float32(1), np.float32(2)), (np.float32(3), 1.0)],
  'empty list': [],
  'three': (1.0, 2.0, 3.0),
  'list of floats': [1.0, 2.0],
  'clu': clu_values.Scalar(2.0),
  'clu text': clu_values.Text('x'),
  'text': 'x',
  'none': None,
}


def _utils() -> Iterator[cases.Case]:
  for name, (label, value) in itertools.product(
    ('is_scalar', 'is_weighted_scalar', 'is_float_convertible', 'as_float'),
    _VALUES.items(),
  ):
    yield cases.FunctionCase(
      name=f'metric_utils.{name}, {label}',
      function=functools.partial(getattr(metric_utils, name), value),
    )
  for raises in (False, True):
    yield cases.FunctionCase(
      name=f'metric_utils.as_float_dict, {raises}',
      function=lambda raises=raises: metric_utils.as_float_dict(
        {k: v for k, v in _VALUES.items() if 'list' not in k}, raises
      ),
    )
  for prefix in (None, 'eval'):
    yield cases.FunctionCase(
      name=f'metric_utils.update_float_dict, {prefix}',
      function=lambda prefix=prefix: metric_utils.update_float_dict(
        {'a': 1.0, 'b': 2.0}, {'b': 3.0}, prefix
      ),
    )
  scalar, text = clu_values.Scalar(1.0), clu_values.Text('x')
  for label, value in {
    'scalar': scalar,
    'dict': {'a': scalar, 'b': [scalar, text]},
    'list': [scalar, text],
    'number': 1.0,
  }.items():
    yield cases.FunctionCase(
      name=f'metric_utils.compute_metric_values, {label}',
      function=lambda value=value: _value(
        metric_utils.compute_metric_values({'m': _Valued(value)})
      ),
    )
  yield from _merges()


def _merges() -> Iterator[cases.Case]:
  create = base_metrics.WeightedScalarCluMetric.create
  metric = functools.partial(create, jnp.arange(3.0), jnp.ones(3))
  for label, (old, new) in {
    'first': ({}, ['a']),
    'both': (['a', 'b'], ['b', 'a']),
    'other keys': (['a'], ['b']),
  }.items():
    yield cases.FunctionCase(
      name=f'metric_utils.merge_clu_metrics, {label}',
      function=lambda old=old, new=new: metric_utils.merge_clu_metrics(
        {k: metric() for k in old}, {k: metric() for k in new}
      ),
    )
  weighted = (jnp.ones(()), jnp.ones(()))
  for label, metrics in {
    'scalars': lambda: {'a': weighted},
    'nested scalars': lambda: NestedMap(a=NestedMap(b=weighted)),
    'clu': lambda: {'a': metric()},
    'text': lambda: {'a': 'x'},
    'empty': dict,
  }.items():
    yield cases.FunctionCase(
      name=f'extract_weighted_scalars_and_clu_metrics, {label}',
      function=lambda metrics=metrics: (
        metric_utils.extract_weighted_scalars_and_clu_metrics(metrics())
      ),
    )
  for k in (1, 2, 5):
    for weighted_labels in (False, True):
      weights = np.float32([1, 0, 1, 0.5]) if weighted_labels else None
      yield cases.FunctionCase(
        name=f'top_k_accuracy, {k}, {weighted_labels}',
        function=lambda k=k, weights=weights: (
          praxis_metric_utils.top_k_accuracy(
            k,
            jnp.asarray(floats(4, 5)),
            label_ids=jnp.asarray(integers(4, high=5)),
            weights=weights,
          )
        ),
      )


_SUMMARIES = {
  'loss_scalar': np.float32([1, 2, 4]),
  'norm_aggregate_scalar': np.float32([1, 2, 6]),
  'view_image': floats(3, 2, 4, 4, 1),
  'mean_aggregate_image': floats(3, 2, 4, 4, 1, seed=1),
  'sound_audio': floats(3, 2, 8, 1),
  'film_video': floats(3, 2, 2, 4, 4, 1),
  'words_text': np.float32([1, 2, 3]),
  'spread_histogram': floats(3, 5),
}
_TREE = {
  'lm': {'w': floats(2, 3), 'layers': [floats(3), floats(4, 2)]},
  'scalar': np.float32(3),
  'none': None,
  'nested': {'a': {'b': {'c': {'d': {'e': floats(2)}}}}},
}


def _tree_cases() -> Iterator[cases.Case]:
  for level, prefix, sep in ((1, '', '/'), (2, 'vars', '/'), (20, 'v', '.')):
    yield cases.FunctionCase(
      name=f'l2_mean, {level}',
      function=functools.partial(
        summary_utils.l2_mean, _TREE, prefix, level, sep
      ),
    )
  yield cases.FunctionCase(
    name='l2_mean, large',
    function=lambda: summary_utils.l2_mean({'a': floats(3) * 1e20}),
  )
  for replicated, dtypes in itertools.product((False, True), (False, True)):
    tree = {'a': floats(2, 3), 'b': [floats(4, 1), {'c': floats(5)}]}
    yield cases.FunctionCase(
      name=f'pretty_repr_shapes, {replicated}, {dtypes}',
      function=functools.partial(
        summary_utils.pretty_repr_shapes, tree, replicated, dtypes
      ),
    )
  for label, tree in {
    'dict': {'a': 1, 'b': {'c': [1, 'x', (2.5, None)]}},
    'empty': {'a': {}, 'b': [], 'c': ()},
    'map': NestedMap(b=1, a=NestedMap(c=2)),
    'leaf': 'text',
  }.items():
    yield cases.FunctionCase(
      name=f'pretty_repr, {label}',
      function=functools.partial(summary_utils.pretty_repr, tree),
    )
    yield cases.FunctionCase(
      name=f'pretty_format_iters, {label}',
      function=lambda tree=tree: summary_utils.pretty_format_iters(
        summary_utils.pretty_repr(tree)
      ),
    )


def _summaries() -> Iterator[cases.Case]:
  nested = {
    'lm': {'x_scalar': 1.0, 'repeat': {'x_scalar': [1.0, 2.0], 'y': [3.0]}},
    'image_aggregate_image': [floats(2, 2)],
  }
  yield cases.FunctionCase(
    name='flatten_flax_summaries',
    function=functools.partial(summary_utils.flatten_flax_summaries, nested),
  )
  for parent in (None, 'top/'):
    yield cases.FunctionCase(
      name=f'flatten_summary_dict, {parent}',
      function=functools.partial(
        summary_utils.flatten_summary_dict,
        {'a': 1.0, 'b': {'c': 2.0, 'd': {'e': 3.0}}},
        parent,
      ),
    )
  for subset in (list(_SUMMARIES), ['loss_scalar'], ['view_image']):
    batch = {k: jnp.asarray(_SUMMARIES[k]) for k in subset}
    yield cases.FunctionCase(
      name=f'aggregate_per_replica_summaries, {len(subset)} {subset[0]}',
      function=lambda batch=batch: jax.vmap(
        summary_utils.aggregate_per_replica_summaries, axis_name=_AXIS
      )(batch),
    )
  yield cases.FunctionCase(
    name='aggregate_per_replica_summaries, many images',
    function=lambda: jax.vmap(
      summary_utils.aggregate_per_replica_summaries, axis_name=_AXIS
    )({'x_image': jnp.asarray(floats(2, 70, 2, 2, 1))}),
  )
  yield cases.FunctionCase(
    name='aggregate_per_replica_summaries, alone',
    function=lambda: summary_utils.aggregate_per_replica_summaries(
      {'loss_scalar': jnp.ones(())}
    ),
  )
  yield from _summary_keys()


def _summary_keys() -> Iterator[cases.Case]:
  for key in [*_SUMMARIES, 'none', 'x_scalar_image', '_scalar']:
    for name, function in {
      'type': base_layer.get_summary_type_from_key,
      'trimmed': base_layer.trim_summary_type_from_key,
      'base type': lambda key: base_layer.get_summary_base_type(
        base_layer.get_summary_type_from_key(key)
      ),
      'display name': summary_utils.get_summary_display_name_from_key,
    }.items():
      yield cases.FunctionCase(
        name=f'summary key, {key}, {name}',
        function=functools.partial(function, key),
      )
  image = np.zeros((3, 2, 2, 1), np.float32)
  for label, tensors in {
    'absent': {},
    'empty': {'x_image': []},
    'few': {'x_image': [image]},
    'many': {'x_image': [image] * 30},
    'split': {'x_image': [np.zeros((8, 8, 2, 2, 1), np.float32)]},
    'scalars': {'x_scalar': [np.float32(1)] * 99},
  }.items():
    for key in ('x_image', 'x_scalar'):
      yield cases.FunctionCase(
        name=f'should_cap_summary, {label}, {key}',
        function=lambda tensors=tensors, key=key: bool(
          summary_utils.should_cap_summary(tensors, key)
        ),
      )


def family() -> Iterator[cases.Case]:
  yield from _metrics()
  yield from _aggregators()
  yield from _weighted_scalar()
  yield from _utils()
  yield from _tree_cases()
  yield from _summaries()
