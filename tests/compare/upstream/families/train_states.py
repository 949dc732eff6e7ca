# SPDX-License-Identifier: Apache-2.0
"""Shapes, partition specs and values of whole train states."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from paxml import trainer_lib
from praxis import base_layer, optimizers, pax_fiddle, py_utils, schedules
from tests.compare.upstream import cases, tasks
from tests.compare.upstream.cases import floats

learners = importlib.import_module('paxml.learners')
tasks_lib = importlib.import_module('paxml.tasks_lib')

NestedMap = py_utils.NestedMap
_MESH_SHAPE, _MESH_AXES = tasks.MESH_SHAPE, tasks.MESH_AXES


def _weight(
  shape: list[int],
  splits: list[Any] | None,
  repeats: tuple[int, ...] = (),
  collections: tuple[str, ...] = (),
  **options: Any,
) -> base_layer.WeightHParams:
  return base_layer.WeightHParams(
    shape=shape,
    mesh_shape=_MESH_SHAPE,
    tensor_split_dims_mapping=splits,
    repeat_prefix=list(repeats) or None,
    repeat_prefix_split_dims_mapping=[None] * len(repeats) or None,
    collections=list(collections),
    dtype=jnp.float32,
    **options,
  )


def _even() -> dict[str, Any]:
  return {
    'linear': {
      'w': _weight([8, 16], ['data', 'mdl']),
      'b': _weight([16], ['mdl']),
    },
    'emb': _weight([24, 8], [('data', 'mdl'), None]),
    'scale': _weight([], None),
  }


def _uneven() -> dict[str, Any]:
  return {
    'w': _weight([7, 9], ['data', 'mdl']),
    'cube': _weight([3, 5, 6], ['mdl', None, ('replica', 'data')]),
    'b': _weight([9], [('data', 'mdl')]),
    'free': _weight([5, 3], [-1, None]),
  }


def _repeated() -> dict[str, Any]:
  return {
    'first': {'w': _weight([8, 16], ['data', 'mdl'])},
    'repeat': {
      'sub': {
        'w': _weight([8, 16], ['data', 'mdl'], (3,)),
        'b': _weight([16], ['mdl'], (3,)),
      },
      'deep': _weight([6, 4], ['data', None], (2, 3)),
    },
  }


_TREES: dict[str, Callable[[], dict[str, Any]]] = {
  'even': _even,
  'uneven': _uneven,
  'repeated': _repeated,
}


def _variables(tree: str) -> Any:
  """Returns declarations with a moving average beside the parameters."""
  average = _weight(
    [16], [None], (), (base_layer.WeightHParamsCollection.NON_TRAINABLE,)
  )
  return {
    'params': NestedMap.FromNestedDict(_TREES[tree]()),
    'non_trainable': NestedMap(mean=average),
  }


_SCHEDULE = {'learning_rate': 0.1}
_ADAFACTOR = {'decay_method': 'adam', 'decay_adam': 0.9, 'beta1': 0.9}
_FACTORED = {'min_dim_size_to_factor': 4, **_ADAFACTOR}
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
  'sgd': ('ShardedSgd', {}),
  'momentum': ('ShardedSgd', {'momentum': 0.9}),
  'unsharded momentum': ('Sgd', {'momentum': 0.9}),
  'adagrad': ('ShardedAdagrad', {}),
  'adam': ('Adam', {}),
  'adam ema': ('Adam', {'ema_decay': 0.9}),
  'adam decay': ('Adam', {'weight_decay': 0.1, 'l2_regularizer_weight': 0.1}),
  'unsharded adam': ('Adam', {'sharded_adam': False}),
  'lion': ('Lion', {}),
  'lion ema': ('Lion', {'ema_decay': 0.9}),
  'unsharded adafactor': ('Adafactor', {}),
  'adafactor': (
    'ShardedAdafactor',
    {'min_dim_size_to_factor': 4, **_ADAFACTOR},
  ),
  'adafactor first moment': ('ShardedAdafactor', _ADAFACTOR),
  'adafactor without momentum': (
    'ShardedAdafactor',
    {**_FACTORED, 'beta1': 0.0},
  ),
  'adafactor int8': (
    'ShardedAdafactor',
    {**_FACTORED, 'quantized_dtype': 'int8'},
  ),
  'adafactor sorted': (
    'ShardedAdafactor',
    {
      **_ADAFACTOR,
      'sort_factored_second_moment_dims': True,
      'min_dim_size_to_factor': 2,
      'ema_decay': 0.9,
    },
  ),
}


def _optimizer(name: str) -> Any:
  cls, fields = _OPTIMIZERS[name]
  return getattr(optimizers, cls).config(
    lr_schedule=schedules.Constant.config(), **_SCHEDULE, **fields
  )


def _optax(_: str = '') -> Any:
  return optimizers.OptaxOptimizer.config(
    grad_tx=optax.chain(optax.clip(1.0), optax.adam(0.1)),
    learning_rate=1.0,
    lr_schedule=schedules.Constant.config(),
  )


def _accumulated(name: str) -> Any:
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=_optimizer(name),
    num_sub_batches=2,
    lr_schedule=schedules.Constant.config(),
    **_SCHEDULE,
  )


_LEARNERS: dict[str, dict[str, Any]] = {
  'excluded': {'bprop_variable_exclusion': ['.*/b$', '.*emb.*']},
  'excluded text': {'bprop_variable_exclusion': '.*w'},
  'included': {'bprop_variable_inclusion': ['.*w']},
  'both': {
    'bprop_variable_inclusion': ['.*w'],
    'bprop_variable_exclusion': ['.*b'],
  },
  'kept states': {
    'bprop_variable_exclusion': ['.*w'],
    'keep_optimizer_state_for_excluded_vars': True,
  },
  'not vectorized': {'vectorize_on_repeat_prefix': False},
  'forced prefix': {'force_repeat_prefix_structure': True},
  'separator': {'repeat_prefix_sep': '_'},
}


def _learner(optimizer: Any, **fields: Any) -> Any:
  return pax_fiddle.Config(
    learners.Learner,
    name='learner',
    loss_name='loss',
    optimizer=optimizer,
    **fields,
  )


def _two_optimizers(main: str, auxiliary: str, **fields: Any) -> Any:
  return pax_fiddle.Config(
    learners.MultiOptimizerLearner,
    name='learner',
    loss_name='loss',
    optimizer=_optimizer(main),
    auxiliary_optimizers=[_optimizer(auxiliary)],
    auxiliary_regex=['.*w$'],
    auxiliary_names=['weights'],
    **fields,
  )


def _specs(tree: str, make: Callable[[], Any], **options: Any) -> Any:
  learner = base_layer.instantiate(make())
  hparams = _variables(tree)
  # Specs of unsharded transformations follow the shapes of their states.
  shapes = tasks_lib.create_state_unpadded_shapes(hparams, False, [learner])
  return tasks_lib.create_state_partition_specs(
    hparams,
    _MESH_SHAPE,
    _MESH_AXES,
    **{'discard_opt_states': False, **options},
    learners=[learner],
    opt_states=shapes.opt_states,
  )


def _unpadded(tree: str, make: Callable[[], Any], **options: Any) -> Any:
  return tasks_lib.create_state_unpadded_shapes(
    _variables(tree),
    **{'discard_opt_states': False, **options},
    learners=[base_layer.instantiate(make())],
  )


def _padded(tree: str, make: Callable[[], Any], **options: Any) -> Any:
  return tasks_lib.create_state_padded_shapes(
    _variables(tree),
    options.pop('mesh_shape', _MESH_SHAPE),
    _MESH_AXES,
    **{'discard_opt_states': False, **options},
    learners=[base_layer.instantiate(make())],
  )


def _state(tree: str, make: Callable[[], Any], **options: Any) -> Any:
  hparams = _variables(tree)
  variables = jax.tree.map(
    lambda h: jnp.asarray(floats(*h.full_shape)), hparams
  )
  return tasks_lib.create_state(
    variables,
    hparams,
    **{'discard_opt_states': False, **options},
    learners=[base_layer.instantiate(make())],
  )


def _all_of(
  name: str, tree: str, make: Callable[[], Any], **options: Any
) -> Iterator[cases.Case]:
  for label, function in {
    'specs': _specs,
    'unpadded': _unpadded,
    'padded': _padded,
  }.items():
    yield cases.FunctionCase(
      name=f'{name}, {tree}, {label}',
      function=functools.partial(function, tree, make, **options),
    )


def _optimizer_states() -> Iterator[cases.Case]:
  for name, tree in itertools.product(_OPTIMIZERS, _TREES):
    make = functools.partial(lambda n: _learner(_optimizer(n)), name)
    yield from _all_of(name, tree, make)
    if tree == 'repeated':
      yield cases.FunctionCase(
        name=f'{name}, {tree}, create_state',
        function=functools.partial(_state, tree, make),
      )
  for name in ('adam', 'adafactor'):
    make = functools.partial(lambda n: _learner(_accumulated(n)), name)
    yield from _all_of(f'accumulated {name}', 'repeated', make)
  for tree in _TREES:
    yield from _all_of('optax', tree, lambda: _learner(_optax()))
  for tree in _TREES:
    yield from _all_of(
      'discarded',
      tree,
      lambda: _learner(_optimizer('adam ema')),
      discard_opt_states=True,
    )
    yield cases.FunctionCase(
      name=f'no mesh, {tree}, padded',
      function=functools.partial(
        _padded,
        tree,
        lambda: _learner(_optimizer('adafactor')),
        mesh_shape=None,
      ),
    )


def _learner_states() -> Iterator[cases.Case]:
  for (label, fields), name, tree in itertools.product(
    _LEARNERS.items(), ('adam ema', 'adafactor', 'adam'), ('even', 'repeated')
  ):
    make = functools.partial(
      lambda n, f: _learner(_optimizer(n), **f), name, fields
    )
    yield from _all_of(f'{label}, {name}', tree, make)
  for label, fields in _LEARNERS.items():
    for function in (
      tasks_lib.get_excluded_var_mask_for_grad,
      tasks_lib.get_excluded_var_mask_for_opt,
    ):
      for name in ('adam', 'adam ema'):

        def mask(function: Any, fields: Any, name: str) -> Any:
          learner = base_layer.instantiate(_learner(_optimizer(name), **fields))
          return function(_variables('repeated'), learner)

        yield cases.FunctionCase(
          name=f'{function.__name__}, {label}, {name}',
          function=functools.partial(mask, function, fields, name),
        )
  for main, auxiliary in (
    ('adam', 'momentum'),
    ('adam ema', 'adafactor'),
    ('adafactor', 'sgd'),
    ('unsharded momentum', 'unsharded momentum'),
  ):
    for fields in ({}, {'vectorize_on_repeat_prefix': False}):
      label = f'{main} and {auxiliary}{" not vectorized" if fields else ""}'
      make = functools.partial(_two_optimizers, main, auxiliary, **fields)
      yield from _all_of(label, 'repeated', make)
      yield cases.FunctionCase(
        name=f'{label}, repeated, create_state',
        function=functools.partial(_state, 'repeated', make),
      )


def _declared(hparams: Any) -> Any:
  return jax.tree.map(
    lambda h: (
      f'{[int(d) for d in h.full_shape]} {jnp.dtype(h.dtype)} '
      f'{sorted(h.collections or ())} {h.repeat_prefix}'
    ),
    hparams,
    is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
  )


def _metadata(
  model: str, optimizer: str, mesh: bool, options: Mapping[str, Any]
) -> Any:
  task = tasks.task(
    tasks.MODELS[model](), _learner(_optimizer(optimizer)), mesh
  )
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tasks.tokens()
  )
  metadata = trainer_lib.create_train_state_metadata(task, shapes, **options)
  return {
    'input': metadata.input_shape_dtype,
    'hparams': _declared(metadata.var_weight_hparams),
    'padded': metadata.padded_global_shapes,
    'unpadded': metadata.unpadded_global_shapes,
    'specs': metadata.partition_specs,
  }


def _metadata_cases() -> Iterator[cases.Case]:
  for model, optimizer, mesh in itertools.product(
    tasks.MODELS, ('adam ema', 'adafactor', 'momentum'), (False, True)
  ):
    yield cases.FunctionCase(
      name=f'create_train_state_metadata, {model}, {optimizer}, {mesh}',
      function=functools.partial(_metadata, model, optimizer, mesh, {}),
    )
  for options in ({'discard_opt_states': True}, {'do_eval': True}):
    for mesh in (False, True):
      yield cases.FunctionCase(
        name=f'create_train_state_metadata, {options}, {mesh}',
        function=functools.partial(
          _metadata, 'repeated', 'adam ema', mesh, options
        ),
      )


def family() -> Iterator[cases.Case]:
  yield from _optimizer_states()
  yield from _learner_states()
  yield from _metadata_cases()
