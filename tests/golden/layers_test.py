# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: deps=//tests/golden:layer_cases
# bazel: deps=//tools/wheel:praxis_modules
# bazel: size=medium
"""What each layer declares and returns, as text that changes visibly.

    UPDATE_GOLDEN=1 pytest tests/golden/layers_test.py    # accepts it as it is

The cases stand in `tests/golden/layer_cases`, a module for each room. A line
for a variable says its collection and path, dtype and shape, initializer and
split over a mesh of replica, data and mdl. Nothing is allocated or compiled.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, layers, py_utils
from tests.golden import layer_case, layer_cases

_FOLDER = pathlib.Path(__file__).parent / 'layers'
_MESH = {
  'ici_mesh_shape': [1, 2, 2],
  'mesh_axis_names': ['replica', 'data', 'mdl'],
}


# Layers in no text: bases and parts of others, and the layers of tests.
_WITHOUT = """
activations.BaseActivation
attentions.head_logits.HeadLogits
attentions.head_ngrams.HeadNgrams
attentions.head_norms.HeadNorms
attentions.head_projections.HeadProjections
attentions.kernel_choice.KernelAttention
attentions.kv_cache.CachedAttention
bregman.BregmanSettings
context_parallel.attention_layers.ContextParallel
conv_stages.ConvStages
convolutions.conv.BaseConv
convolutions.depthwise.BaseDepthwiseConv1D
decode_states.DecodeStateContainer
embedding_softmax.projection.LogitsProjection
embedding_softmax.rotary_scaling.RotaryScaling
flax_adapter.FlaxModuleAdapterBase
low_rank_adaptation.AdaptedWeights
low_rank_adaptation.LowRankAdaptation
low_rank_adaptation.LowRankUpdates
ngrammer.per_head_norm.NgramCombiner
ngrammer.per_head_norm.PerHeadNorm
normalizations.base.BaseNormalization
quantization.automl_select.BaseAutoMLSelect
quantization.low_rank_adaptation.QuantizedAdaptation
quantization.low_rank_residual.LowRankResidual
quantization.overflow_check.OverflowChecker
quantization.quantizer.quantization_layer.QuantizationLayer
quantization.quantizer.quantized_weights.QuantizedWeights
quantization.searchable.SearchableQuantizedLayer
quantization.sparsity.sparsifier.SparsityBaseLayer
quantization.quantized_layer_mixin.QuantizedLayerMixin
quantization.quantized_layer_mixin.SparseQuantizedLayerMixin
recurrent_mixer.RecurrentMixer
rnn_cell.BaseRnnCell
test_layers.AddOneLayer
test_layers.ProjectionLayer
test_layers.TestBatchNormalizationModel
test_layers.TestLayer
test_layers.TestLinearRegressionModel
test_layers.TestModel01
test_layers.TestSpmdModel
test_layers.VarUnusedLayer
transformers.feed_forward_block.FeedForwardBlock
transformers.transformer_stack.TransformerStack
""".split()


def _rooms() -> list[str]:
  return sorted(m.name for m in pkgutil.iter_modules(layer_cases.__path__))


@functools.cache
def _cases(room: str) -> dict[str, layer_case.Case]:
  return importlib.import_module(f'{layer_cases.__name__}.{room}').CASES


def _layer(case: layer_case.Case, **fields: Any) -> base_layer.BaseLayer:
  return case.config.clone().set(name='layer', **fields).Instantiate()


def _declared(case: layer_case.Case) -> Any:
  """Returns the hyperparameters of the variables."""
  arrays, fill = _split((case.args, case.kwargs))
  method = _method(case) or type(_layer(case)).__call__

  def call(layer: base_layer.BaseLayer, *arrays: jax.Array) -> Any:
    args, kwargs = fill(arrays)
    return method(layer, *args, **kwargs)

  return _layer(case, **_MESH).abstract_init_with_metadata(*arrays, method=call)


def _variable_lines(declared: Any) -> Iterator[str]:
  for path, weight in py_utils.tree_paths(declared):
    shape = ','.join(map(str, weight.full_shape))
    init = weight.init
    init = init and f'{init.method}({init.scale:g})'
    split = weight.full_split_dims_mapping
    yield f'{path} : {np.dtype(weight.dtype)}[{shape}] {init} {split}'


def _is_array(x: Any) -> bool:
  return isinstance(x, jax.ShapeDtypeStruct)


def _split(arguments: Any) -> tuple[list[Any], Callable[..., Any]]:
  """Returns the arrays among arguments, and what puts others in their place."""
  leaves, tree = jax.tree.flatten(arguments)

  def fill(arrays: Iterable[jax.Array]) -> Any:
    found = iter(arrays)
    filled = [next(found) if _is_array(leaf) else leaf for leaf in leaves]
    return jax.tree.unflatten(tree, filled)

  return [leaf for leaf in leaves if _is_array(leaf)], fill


def _method(case: layer_case.Case) -> Any:
  return case.method and getattr(type(_layer(case)), case.method)


def _returned(case: layer_case.Case, variables: Any, dtype: jnp.dtype) -> Any:
  """Returns the abstract output for inputs and arithmetic in `dtype`."""
  layer = _layer(case, fprop_dtype=dtype)
  cast = lambda x: (
    jax.ShapeDtypeStruct(x.shape, dtype)
    if _is_array(x) and x.dtype == jnp.float32
    else x
  )
  arrays, fill = _split(jax.tree.map(cast, (case.args, case.kwargs)))

  def call(variables: Any, *arrays: jax.Array) -> Any:
    args, kwargs = fill(arrays)
    output, _ = layer.apply(
      variables,
      *args,
      method=_method(case),
      mutable=True,
      rngs={base_layer.RANDOM: jax.random.key(1)},
      **kwargs,
    )
    return output

  return jax.eval_shape(call, variables, *arrays)


def _lines(room: str) -> Iterator[str]:
  for name, case in _cases(room).items():
    yield f'# {name}'
    declared = _declared(case)
    yield from _variable_lines(declared)
    variables = jax.tree.map(
      lambda weight: jax.ShapeDtypeStruct(weight.full_shape, weight.dtype),
      declared,
    )
    for dtype in (jnp.float32, jnp.bfloat16):
      outputs = _returned(case, variables, dtype)
      for path, x in py_utils.tree_paths(outputs):
        shape = ','.join(map(str, x.shape))
        yield f'-> in {np.dtype(dtype)} {path} : {x.dtype}[{shape}]'
    yield ''


@functools.cache
def _text_and_layers(room: str) -> tuple[str, set[type]]:
  """Returns the text, and the classes of all layers that were called."""
  called = set()

  def note(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
    called.add(type(context.module))
    return method(*args, **kwargs)

  with nn.intercept_methods(note):
    return '\n'.join(_lines(room)), called


def _public_layers() -> set[type]:
  """Returns the layers that modules of praxis.layers define."""
  found = set()
  for entry in pkgutil.walk_packages(layers.__path__, f'{layers.__name__}.'):
    module = importlib.import_module(entry.name)
    found |= {
      value
      for name, value in vars(module).items()
      if isinstance(value, type)
      and issubclass(value, base_layer.BaseLayer)
      and value.__module__ == entry.name
      and not name.startswith('_')
    }
  return found


@pytest.mark.parametrize('room', _rooms())
def test_declares_and_returns_the_golden_text(room):
  text, _ = _text_and_layers(room)
  golden = _FOLDER / f'{room}.txt'
  if os.environ.get('UPDATE_GOLDEN') == '1':
    golden.parent.mkdir(exist_ok=True)
    golden.write_text(text)
  assert golden.exists(), f'run UPDATE_GOLDEN=1 pytest {__file__}'
  assert text == golden.read_text()


def test_every_public_layer_is_in_the_golden_text():
  """Each is called in a case, as itself or as a part of another layer."""
  called = set().union(*(_text_and_layers(room)[1] for room in _rooms()))
  names = {f'{x.__module__}.{x.__name__}' for x in _public_layers() - called}
  known = {f'praxis.layers.{name}' for name in _WITHOUT}
  assert sorted(names - known) == []
  assert sorted(known - names) == []


def test_no_golden_text_is_left_over():
  assert sorted(p.stem for p in _FOLDER.iterdir()) == _rooms()
