# SPDX-License-Identifier: Apache-2.0
"""Per-example gradient norms of ghost clipping (paxml.ghostnorm)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  embedding_softmax,
  linears,
  normalizations,
  transformers,
)
from tests.compare.upstream import cases, tasks
from tests.compare.upstream.cases import floats, integers

base = importlib.import_module('paxml.ghostnorm.base')
embedding = importlib.import_module('paxml.ghostnorm.embedding')
generic_wrapper = importlib.import_module('paxml.ghostnorm.generic_wrapper')
ghost_linears = importlib.import_module('paxml.ghostnorm.linears')

_X = floats(3, 5, 4)
_LONG = floats(3, 2, 8)
_IDS = integers(3, 5, high=9)
_SCALES = np.array([0.5, 1.0, 0.25], np.float32)
_PADDINGS = cases.paddings([5, 3, 4], 5)


def _config(cls: Any, **fields: Any) -> Any:
  return pax_fiddle.Config(cls, name='layer', **fields)


_LINEAR = {'input_dims': 4, 'output_dims': 6}
_TABLE = {'num_classes': 9, 'input_dims': 4}
_PROJECTION = {'input_dim': 4, 'num_heads': 2, 'dim_per_head': 3}
# Label: (Config, whether it is a template to wrap, arguments, method).
_LAYERS: dict[str, tuple[Callable[[], Any], bool, tuple[Any, ...], str]] = {
  'LinearGhostNorm, rank 2': (
    lambda: _config(ghost_linears.LinearGhostNorm, **_LINEAR),
    False,
    (_X[:, 0],),
    '__call__',
  ),
  'LinearGhostNorm, rank 3': (
    lambda: _config(ghost_linears.LinearGhostNorm, **_LINEAR),
    False,
    (_X,),
    '__call__',
  ),
  'LinearGhostNorm, rank 3 by products': (
    lambda: _config(ghost_linears.LinearGhostNorm, input_dims=8, output_dims=6),
    False,
    (_LONG,),
    '__call__',
  ),
  'LinearGhostNorm, rank 4': (
    lambda: _config(ghost_linears.LinearGhostNorm, **_LINEAR),
    False,
    (floats(3, 2, 5, 4),),
    '__call__',
  ),
  'BiasGhostNorm, rank 2': (
    lambda: _config(ghost_linears.BiasGhostNorm, dims=4),
    False,
    (_X[:, 0],),
    '__call__',
  ),
  'EmbeddingGhostNorm, index': (
    lambda: _config(embedding.EmbeddingGhostNorm, **_TABLE),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, rank 1': (
    lambda: _config(embedding.EmbeddingGhostNorm, **_TABLE),
    False,
    (_IDS[:, 0],),
    '__call__',
  ),
  'EmbeddingGhostNorm, outside': (
    lambda: _config(
      embedding.EmbeddingGhostNorm, set_nan_for_oob_id=True, **_TABLE
    ),
    False,
    (_IDS + 3,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, matmul': (
    lambda: _config(
      embedding.EmbeddingGhostNorm, lookup_style='matmul', **_TABLE
    ),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, scaled': (
    lambda: _config(
      embedding.EmbeddingGhostNorm, scale_sqrt_depth=True, **_TABLE
    ),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, transposed': (
    lambda: _config(
      embedding.EmbeddingGhostNorm,
      use_softmax_shared_embedding_shape_weights=True,
      **_TABLE,
    ),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, transposed matmul': (
    lambda: _config(
      embedding.EmbeddingGhostNorm,
      use_softmax_shared_embedding_shape_weights=True,
      lookup_style='matmul',
      **_TABLE,
    ),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'EmbeddingGhostNorm, other style': (
    lambda: _config(
      embedding.EmbeddingGhostNorm, lookup_style='other', **_TABLE
    ),
    False,
    (_IDS,),
    'emb_lookup',
  ),
  'Linear': (
    lambda: _config(linears.Linear, **_LINEAR),
    True,
    (_X,),
    '__call__',
  ),
  'FeedForward': (
    lambda: _config(linears.FeedForward, **_LINEAR),
    True,
    (_X[:, 0],),
    '__call__',
  ),
  'FeedForward without bias': (
    lambda: _config(linears.FeedForward, has_bias=False, **_LINEAR),
    True,
    (_X,),
    '__call__',
  ),
  'Embedding': (
    lambda: _config(embedding_softmax.Embedding, **_TABLE),
    True,
    (_IDS,),
    'emb_lookup',
  ),
  'LayerNorm': (
    lambda: _config(normalizations.LayerNorm, dim=4),
    True,
    (_X,),
    '__call__',
  ),
  'RmsNorm': (
    lambda: _config(normalizations.RmsNorm, dim=4),
    True,
    (_X,),
    '__call__',
  ),
  'GroupNorm': (
    lambda: _config(
      normalizations.GroupNorm,
      dim=4,
      num_groups=2,
      min_group_size=2,
      input_rank=3,
    ),
    True,
    (_X, _PADDINGS),
    '__call__',
  ),
  'AttentionProjection': (
    lambda: _config(attentions.AttentionProjection, **_PROJECTION),
    True,
    (_X,),
    '__call__',
  ),
  'AttentionProjection, output': (
    lambda: _config(
      attentions.AttentionProjection, is_output_projection=True, **_PROJECTION
    ),
    True,
    (floats(3, 5, 2, 3),),
    '__call__',
  ),
  'CombinedQKVProjectionLayer': (
    lambda: _config(attentions.CombinedQKVProjectionLayer, **_PROJECTION),
    True,
    (_X,),
    '__call__',
  ),
  'PerDimScale': (
    lambda: _config(attentions.PerDimScale, dim=4),
    True,
    (_X,),
    '__call__',
  ),
  'CausalDepthwiseConv1D': (
    lambda: _config(
      attentions.CausalDepthwiseConv1D, kernel_size=2, hidden_dims=4
    ),
    True,
    (_X,),
    '__call__',
  ),
  'DotProductAttention': (
    lambda: _config(
      attentions.DotProductAttention, input_dim=4, hidden_dim=8, num_heads=2
    ),
    True,
    (_X, _X, _X, np.zeros((3, 1, 5, 5), np.float32)),
    '__call__',
  ),
  'TransformerFeedForward': (
    lambda: _config(
      transformers.TransformerFeedForward, input_dims=4, hidden_dims=8
    ),
    True,
    (_X, _PADDINGS),
    '__call__',
  ),
  'Transformer': (
    lambda: _config(
      transformers.Transformer, input_dims=4, hidden_dims=8, num_heads=2
    ),
    True,
    (_X, _PADDINGS, np.zeros((3, 1, 5, 5), np.float32)),
    '__call__',
  ),
}
_AUX = {'none': None, 'ones': np.ones(3, np.float32), 'scales': _SCALES}


def _first(outputs: Any) -> Any:
  return outputs[0] if isinstance(outputs, tuple) else outputs


def _gradients(
  config: Callable[[], Any],
  is_template: bool,
  args: tuple[Any, ...],
  method: str,
  aux: np.ndarray | None,
  **options: Any,
) -> Any:
  """Returns outputs, gradients, and squared norms where `aux` is given."""
  cfg = config()
  if is_template:
    cfg = generic_wrapper.generate_wrapped_template(cfg, **options)
  layer = base_layer.instantiate(cfg)
  args = tuple(jnp.asarray(x) for x in args)
  context = base_layer.JaxContext.HParams(do_eval=False)
  with base_layer.JaxContext.new_context(hparams=context):
    shapes = jax.eval_shape(
      lambda: layer.init(
        jax.random.PRNGKey(0), *args, method=getattr(layer, method)
      )
    )

    def value(path: Any, x: Any) -> Any:
      text = jax.tree_util.keystr(path, simple=True, separator='/')
      seed = cases.seed_of(text) % 997
      return jnp.asarray(floats(*x.shape, seed=seed), x.dtype)

    variables = jax.tree_util.tree_map_with_path(value, shapes)
    params = variables.pop('params')
    if aux is not None:
      params = jax.tree.map(
        lambda x: base.ParamWithAux(x, jnp.asarray(aux)), params
      )

    def loss(params: Any) -> Any:
      outputs = _first(
        layer.apply(
          {'params': params, **variables},
          *args,
          method=method,
          rngs={'random': jax.random.PRNGKey(1)},
        )
      )
      weights = np.cos(np.arange(outputs.size)).reshape(outputs.shape)
      weighted = outputs * weights.astype(np.float32)
      axes = tuple(range(1, outputs.ndim))
      return weighted.sum(axes).mean(), outputs

    gradients, outputs = jax.grad(loss, has_aux=True)(params)
  return {
    'shapes': jax.tree.map(lambda x: f'{x.dtype}{list(x.shape)}', shapes),
    'outputs': outputs,
    'gradients': gradients,
  }


def _layer_cases() -> Iterator[cases.Case]:
  for label, (config, is_template, args, method) in _LAYERS.items():
    for name, aux in _AUX.items():
      yield cases.FunctionCase(
        name=f'{label}, {name}',
        function=functools.partial(
          _gradients, config, is_template, args, method, aux
        ),
        # Weights of 1 amplify the rounding of a whole layer.
        tolerance=1e-5 if label == 'Transformer' else 3e-6,
      )
  for label, options in {
    'force_wrap': {'force_wrap': True, 'force_no_replace': True},
    'force_no_replace': {'force_no_replace': True},
  }.items():
    config, is_template, args, method = _LAYERS['Linear']
    yield cases.FunctionCase(
      name=f'Linear, {label}',
      function=functools.partial(
        _gradients, config, is_template, args, method, _SCALES, **options
      ),
      tolerance=3e-6,
    )


def _classes(cfg: Any) -> Any:
  """Returns the classes of a layer's template and of its child templates."""
  is_wrapped = isinstance(cfg, generic_wrapper.GhostNormPaxConfig)
  name = f'{"wrapped " if is_wrapped else ""}{cfg.cls.__name__}'
  children = {
    key: [_classes(x) for x in templates]
    for key, value in cfg.__arguments__.items()
    if (templates := _layer_templates(value))
  }
  return {'class': name, **children}


def _layer_templates(value: Any) -> list[Any]:
  values = value if isinstance(value, (list, tuple)) else [value]
  return [
    x
    for x in values
    if isinstance(x, pax_fiddle.Config)
    and isinstance(x.cls, type)
    and issubclass(x.cls, base_layer.BaseLayer)
  ]


def _template_cases() -> Iterator[cases.Case]:
  templates = {label: made[0] for label, made in _LAYERS.items() if made[1]}
  templates |= {
    'two layers': tasks.two_layers,
    'batch norm': tasks.with_batch_norm,
    'stacked': tasks.MODELS['stacked'],
    'repeated': tasks.MODELS['repeated'],
    'experts': tasks.MODELS['experts'],
  }
  for label, make in templates.items():
    yield cases.FunctionCase(
      name=f'generate_wrapped_template, {label}',
      function=functools.partial(
        lambda make: _classes(
          generic_wrapper.generate_wrapped_template(make())
        ),
        make,
      ),
    )


def _functions() -> Iterator[cases.Case]:
  wrapped = base.ParamWithAux(jnp.ones((2, 3)), jnp.arange(2.0))
  tree = {'a': wrapped, 'b': base.ParamWithAux(jnp.ones((2, 3)), None)}
  for name, function in {
    'get_param': lambda: base.get_param(tree),
    'get_param of arrays': lambda: base.get_param({'a': jnp.ones(2)}),
    'get_aux': lambda: base.get_aux(tree),
    'get_aux of arrays': lambda: base.get_aux({'a': jnp.ones(2)}),
    'dtype': lambda: str(wrapped.dtype),
    'astype': lambda: wrapped.astype(jnp.bfloat16),
    'astype without aux': lambda: tree['b'].astype(jnp.bfloat16),
    'transpose': lambda: wrapped.transpose(),
    'leaves': lambda: jax.tree.leaves(tree),
    'replace': lambda: wrapped.replace(aux=jnp.ones(3)),
  }.items():
    yield cases.FunctionCase(name=f'ParamWithAux, {name}', function=function)


def family() -> Iterator[cases.Case]:
  yield from _layer_cases()
  yield from _template_cases()
  yield from _functions()
