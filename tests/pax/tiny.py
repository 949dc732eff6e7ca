# SPDX-License-Identifier: Apache-2.0
"""A task so small that a test compiles it in a moment."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pax import base_inference_runner, learners, tasks_lib, train_states
from praxis import base_layer, base_model, optimizers, pax_fiddle, schedules
from praxis.layers import linears
from praxis.pytypes import NestedMap

DIM = 8


def weights(state: train_states.TrainState) -> tuple[jax.Array, ...]:
  """Returns the trainable variables of a TinyModel: both kernels, a bias."""
  params = state.mdl_vars['params']
  first, second = params['first'], params['second']
  return first['linear']['w'], first['bias']['b'], second['w']


class TinyModel(base_model.BaseModel):
  """Regression by one hidden layer, its width split over axis `mdl`."""

  hidden: int = 16
  noise: float = 0.0
  linear_tpl: pax_fiddle.Config[linears.Linear] = base_layer.template_field(
    linears.Linear
  )

  def setup(self):
    first = pax_fiddle.Config(
      linears.FeedForward,
      input_dims=DIM,
      output_dims=self.hidden,
      linear_tpl=self.linear_tpl.clone(),
    )
    second = self.linear_tpl.clone().set(input_dims=self.hidden, output_dims=1)
    if self.mesh_axis_names:
      first.weight_split_dims_mapping.wt = ['data', 'mdl']
      first.activation_split_dims_mapping.out = [('replica', 'data'), 'mdl']
      second.weight_split_dims_mapping.wt = ['mdl', 'data']
    self.create_child('first', first)
    self.create_child('second', second)
    self.create_variable(
      'seen',
      base_layer.WeightHParams(
        shape=[],
        init=base_layer.WeightInit.Constant(0.0),
        collections=[
          base_layer.WeightHParamsCollection.REQUIRES_SUM_SYNC,
          base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION,
        ],
      ),
      trainable=False,
    )

  def compute_predictions(self, input_batch):
    hidden = self.first(input_batch.x)
    self.add_summary('mean_hidden', hidden.mean())
    if self.noise:
      hidden += self.noise * jax.random.normal(
        self.next_prng_key(), hidden.shape
      )
    rows = jnp.float32(input_batch.x.shape[0])
    self.update_var('seen', self.get_var('seen') + rows)
    return self.second(hidden)[:, 0]

  def compute_loss(self, predictions, input_batch):
    error = jnp.square(predictions - input_batch.y)
    weights = input_batch.weights.astype(jnp.float32)
    weight = weights.sum()
    loss = (error * weights).sum() / (weight + 1e-6)
    scalars = NestedMap(
      total_loss=(loss, weight), rows=(weight, jnp.float32(1.0))
    )
    return scalars, NestedMap(error=error)

  def guess(self, input_batch):
    """Returns predictions; nothing is counted."""
    return self.second(self.first(input_batch.x))[:, 0]

  def decode(self, input_batch):
    guess = self.guess(input_batch)
    mean = (guess.mean(), jnp.float32(guess.shape[0]))
    return NestedMap(mean=mean), NestedMap(guess=guess), NestedMap()

  def process_decode_out(self, input_obj, decode_out):
    rows = [
      (f'{input_obj.name} {i}', {'guess': float(guess)})
      for i, guess in enumerate(decode_out.guess)
    ]
    count = (np.float32(len(rows)), np.float32(1.0))
    return NestedMap(rows=count), rows, NestedMap()


class TinyRunner(base_inference_runner.BaseInferenceRunner):
  """Infers what the model guesses."""

  def infer(self, train_state, prng_key, var_weight_hparams, input_batch):
    guess = self.model.apply(train_state.mdl_vars, input_batch, method='guess')
    return NestedMap(guess=guess)

  @property
  def output_schema(self):
    return NestedMap(guess=jax.ShapeDtypeStruct((), jnp.float32))


def task(mesh=None, **model_fields):
  """Returns the Config of the task, over `mesh` if one is given."""
  config = pax_fiddle.Config(
    tasks_lib.SingleTask,
    name='tiny',
    model=pax_fiddle.Config(TinyModel, name='model', **model_fields),
  )
  if mesh is not None:
    config.model.ici_mesh_shape = mesh
    config.model.mesh_axis_names = ['replica', 'data', 'mdl']
    config.train.inputs_split_mapping = NestedMap(
      map_1d=(('replica', 'data'),), map_2d=(('replica', 'data'), None)
    )
  config.train.learner = pax_fiddle.Config(
    learners.Learner,
    loss_name='total_loss',
    optimizer=pax_fiddle.Config(
      optimizers.Sgd,
      learning_rate=0.1,
      lr_schedule=pax_fiddle.Config(schedules.Constant),
    ),
  )
  return config


def guess(params, x):
  """Returns what the model says of rows, by numpy."""
  hidden = np.maximum(
    x @ params['first']['linear']['w'] + params['first']['bias']['b'], 0.0
  )
  return (hidden @ params['second']['w'])[:, 0]


def batch(rows=8, seed=0):
  """Returns a host batch whose last row weighs nothing."""
  random = np.random.default_rng(seed)
  x = random.normal(size=(rows, DIM)).astype(np.float32)
  weights = np.ones(rows, np.float32)
  weights[-1] = 0.0
  return NestedMap(x=x, y=x.sum(axis=1) / 3.0, weights=weights)


def spec(host_batch):
  """Returns the shapes of a host batch."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), host_batch
  )
