# SPDX-License-Identifier: Apache-2.0
"""Tasks of the families `train_states` and `train_steps`.

Both interpreters import this module, as they do `cases`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, base_model, pax_fiddle, py_utils
from praxis.layers import (
  activations,
  embedding_softmax,
  linears,
  models,
  normalizations,
  transformer_models,
  transformers,
)
from tests.compare.upstream import cases

tasks_lib = importlib.import_module('paxml.tasks_lib')

NestedMap = py_utils.NestedMap
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
MESH_SHAPE = [1, 2, 4]
MESH_AXES = ['replica', 'data', 'mdl']


class Regression(base_model.BaseModel):
  """Squared error of layers that are called one after another."""

  layers_tpl: Sequence[LayerTpl] | None = base_layer.template_field(None)
  uses_ids: bool = False

  def setup(self) -> None:
    self.create_children('layers', self.layers_tpl)

  def compute_predictions(self, input_batch: Any) -> Any:
    x = input_batch.ids if self.uses_ids else input_batch.x
    for layer in self.layers:
      x = layer(x)
    return x

  def compute_loss(self, predictions: Any, input_batch: Any) -> Any:
    error = jnp.square(predictions - input_batch.y)
    per_example = error.mean(axis=tuple(range(1, error.ndim)))
    loss = per_example.mean()
    self.add_summary('loss', loss)
    size = jnp.asarray(float(per_example.shape[0]), jnp.float32)
    metrics = NestedMap(
      loss=(loss, size), largest=(per_example.max(), jnp.float32(1))
    )
    return metrics, NestedMap(error=per_example)


def regression(*layers: Any, **fields: Any) -> Any:
  return pax_fiddle.Config(
    Regression, name='model', layers_tpl=list(layers), **fields
  )


def feed_forward(**fields: Any) -> Any:
  return pax_fiddle.Config(
    linears.FeedForward,
    **{
      'input_dims': 4,
      'output_dims': 6,
      'activation_tpl': pax_fiddle.Config(activations.Tanh),
      **fields,
    },
  )


def two_layers() -> Any:
  return regression(feed_forward(), feed_forward(input_dims=6, output_dims=3))


def with_batch_norm() -> Any:
  norm = pax_fiddle.Config(normalizations.BatchNorm, dim=6)
  return regression(
    feed_forward(), norm, feed_forward(input_dims=6, output_dims=3)
  )


def with_embedding() -> Any:
  table = pax_fiddle.Config(
    embedding_softmax.Embedding, num_classes=9, input_dims=4
  )
  return regression(table, feed_forward(output_dims=3), uses_ids=True)


def vectors(batch: int = 4) -> Any:
  return NestedMap(
    x=cases.floats(batch, 4),
    y=cases.floats(batch, 3, seed=1),
    ids=cases.integers(batch, high=9),
  )


def _language_model(stacked: Any, **fields: Any) -> Any:
  layer = getattr(stacked, 'block', stacked) if _has_block(stacked) else stacked
  layer.set(num_layers=2, num_heads=2, model_dims=8, hidden_dims=12, **fields)
  lm = pax_fiddle.Config(
    transformer_models.TransformerLm,
    name='tlm',
    model_dims=8,
    vocab_size=18,
    stacked_transformer_tpl=stacked,
  )
  return pax_fiddle.Config(models.LanguageModel, name='lm', lm_tpl=lm)


def _has_block(cfg: Any) -> bool:
  return cfg.cls is transformers.StackedTransformerRepeated


def _repeated() -> Any:
  return _language_model(
    pax_fiddle.Config(
      transformers.StackedTransformerRepeated,
      block=pax_fiddle.Config(transformers.StackedTransformer),
      x_times=3,
    )
  )


MODELS: dict[str, Callable[[], Any]] = {
  'stacked': lambda: _language_model(
    pax_fiddle.Config(transformers.StackedTransformer)
  ),
  'repeated': _repeated,
  'experts': lambda: _language_model(
    pax_fiddle.Config(transformers.StackedTransformer),
    num_experts=4,
    num_groups=1,
    moe_layers=[1],
  ),
}


def tokens() -> Any:
  ids = np.array([[3, 5, 7, 1], [2, 4, 6, 8]], np.int32)
  return NestedMap(
    ids=ids,
    labels=np.roll(ids, -1, 1),
    paddings=cases.paddings([4, 3], 4),
    weights=1 - cases.paddings([4, 3], 4),
    segment_ids=np.ones_like(ids),
    segment_pos=np.tile(np.arange(4, dtype=np.int32), (2, 1)),
  )


def task(model: Any, learner: Any, mesh: bool = False, **train: Any) -> Any:
  """Returns a SingleTask; with `mesh` its language model is sharded."""
  cfg = pax_fiddle.Config(tasks_lib.SingleTask, name='task', model=model)
  cfg.train.learner = learner
  for key, value in train.items():
    setattr(cfg.train, key, value)
  if mesh:
    cfg.model.ici_mesh_shape = MESH_SHAPE
    cfg.model.mesh_axis_names = MESH_AXES
    cfg.model.lm_tpl = transformer_models.TransformerLm.set_sharding_params_v1(
      cfg.model.lm_tpl,
      replica_axis='replica',
      data_axis='data',
      mdl_axis='mdl',
      ici_mesh_shape=MESH_SHAPE,
      mesh_axis_names=MESH_AXES,
      training_optimized=True,
    )
  return base_layer.instantiate(cfg)


def values(hparams: Any) -> Any:
  """Returns variables that depend on their paths and shapes only."""

  def value(path: Any, h: Any) -> Any:
    seed = cases.seed_of(jax.tree_util.keystr(path, simple=True))
    x = cases.floats(*(int(d) for d in h.full_shape), seed=seed % 997)
    if 'non_trainable' in jax.tree_util.keystr(path):
      x = np.abs(x)
    return jnp.asarray(0.5 * x, h.dtype)

  return jax.tree_util.tree_map_with_path(
    value, hparams, is_leaf=lambda x: isinstance(x, base_layer.WeightHParams)
  )
