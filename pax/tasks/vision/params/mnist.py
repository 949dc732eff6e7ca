# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on handwritten digits, for a laptop.

pax --exp=tasks.vision.params.mnist.MnistExperiment --job_log_dir=/tmp/pax/mnist
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int64

from pax import (
  base_experiment,
  experiment_registry,
  learners,
  tasks_lib,
)
from pax.inputs import batch_specs, digits
from pax.inputs.rows import indexed
from praxis import (
  base_input,
  base_layer,
  base_model,
  optimizers,
  pax_fiddle,
  py_utils,
  schedules,
)
from praxis.layers import activations, convolutions, linears, poolings

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]
NestedMap = py_utils.NestedMap
template_field = pax_fiddle.template_field

# Output channels of the convolutions, and dimension of the hidden layer.
_CHANNELS = (32, 64)
_HIDDEN_DIMS = 256


class CNN(base_layer.BaseLayer):
  """Two convolutions, each with 2 x 2 pooling, and two dense layers."""

  # Size of the images, which have one channel.
  height: int = 28
  width: int = 28
  num_classes: int = 10
  # Height and width of the filters.
  kernel_size: int = 3
  # The activation of the convolutions and of the hidden layer.
  activation_tpl: Config[activations.BaseActivation] = template_field(
    activations.ReLU
  )

  def setup(self) -> None:
    """Creates the layers.

    Raises:
      ValueError: The size of the images is not divisible by 4.
    """
    if self.height % 4 or self.width % 4:
      raise ValueError(
        'height and width must be divisible by 4, because each pooling halves '
        f'them, got {self.height} and {self.width}'
      )
    channels = 1
    for i, filters in enumerate(_CHANNELS, 1):
      self.create_child(f'conv{i}', self._convolution(channels, filters))
      pooling = Config(
        poolings.Pooling,
        window_shape=(2, 2),
        window_stride=(2, 2),
        pooling_type='AVG',
      )
      self.create_child(f'pooling{i}', pooling)
      channels = filters
    hidden = Config(
      linears.FeedForward,
      name='dense1',
      input_dims=self.height // 4 * (self.width // 4) * channels,
      output_dims=_HIDDEN_DIMS,
      has_bias=True,
      activation_tpl=self.activation_tpl.clone(),
    )
    logits = Config(
      linears.Linear,
      name='linear',
      input_dims=_HIDDEN_DIMS,
      output_dims=self.num_classes,
    )
    bias = Config(linears.Bias, name='bias', dims=self.num_classes)
    self.create_children('dense', [hidden, logits, bias])

  def __call__(self, inputs: Float[Array, 'B H W 1']) -> Float[Array, 'B C']:
    """Returns the logits."""
    outputs, _ = self.pooling1(self.conv1(inputs))
    outputs, _ = self.pooling2(self.conv2(outputs))
    outputs = outputs.reshape(len(inputs), -1)
    for layer in self.dense:
      outputs = layer(outputs)
    return outputs

  def _convolution(self, channels: int, filters: int) -> LayerTpl:
    return Config(
      convolutions.ConvBNAct,
      filter_shape=(self.kernel_size, self.kernel_size, channels, filters),
      filter_stride=(1, 1),
      batch_norm_tpl=None,
      activation_tpl=self.activation_tpl.clone(),
      bias=True,
    )


class CNNModel(base_model.BaseModel):
  """A classifier of `inputs` [B, H, W, 1] into `labels` [B].

  The optional `eval_sample_weights` [B] weight the examples.
  """

  # The layer from images to logits.
  network_tpl: LayerTpl = template_field(CNN)

  def setup(self) -> None:
    self.create_child('network', self.network_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> Float[Array, 'B C']:
    """Returns the logits."""
    return self.network(input_batch.inputs)

  def compute_loss(
    self, predictions: Float[Array, 'B C'], input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns the metrics loss, in nats, and accuracy, and the logits."""
    labels, logits = input_batch.labels, predictions.astype(jnp.float32)
    weights = input_batch.get('eval_sample_weights', jnp.ones(len(logits)))
    total_weight = jnp.sum(weights)
    log_probs = jnp.take_along_axis(
      jax.nn.log_softmax(logits), labels[:, None], axis=-1
    )[:, 0]
    is_correct = jnp.argmax(logits, axis=-1) == labels
    mean = lambda x: jnp.sum(weights * x) / jnp.maximum(total_weight, 1.0)
    metrics = NestedMap(
      loss=(mean(-log_probs), total_weight),
      accuracy=(mean(is_correct), total_weight),
    )
    return metrics, NestedMap(predictions=predictions)


class MnistDatasetInput(indexed.IndexedInput):
  """4,000 digits of `pax.inputs.digits` for training, or 1,000 held-out ones.

  A batch has `inputs`, float32 [B, 28, 28, 1] from 0 to 1, and `labels`, int32
  [B].
  """

  @property
  def num_examples(self) -> int:
    return len(self._digits.labels)

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    images = self._digits.images[indices, :, :, None]
    return NestedMap(
      inputs=images.astype(np.float32) / 255.0,
      labels=self._digits.labels[indices].astype(np.int32),
    )

  @property
  def _digits(self) -> digits.Digits:
    return digits.mnist_5k(held_out=not self.is_training)


class MnistInputSpecsProvider(base_input.BaseInputSpecsProvider):
  """Shapes of a batch of digits."""

  height: int = 28
  width: int = 28
  # Number of examples per host.
  batch_size: int = 1

  def get_input_specs(self) -> NestedMap:
    """Returns a `jax.ShapeDtypeStruct` for each array of a host's batch."""
    batch_size = self.batch_size
    shape = (batch_size, self.height, self.width, 1)
    return NestedMap(
      inputs=jax.ShapeDtypeStruct(shape, jnp.float32),
      labels=jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      eval_sample_weights=jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    )


@experiment_registry.register
class MnistExperiment(base_experiment.BaseExperiment):
  """91 % accuracy on held-out digits after 1000 steps with batch size 256.

  For N devices, pass --set ICI_MESH_SHAPE=[1,N,1]; None trains one replica per
  device.
  """

  NUM_CLASSES = 10
  WIDTH = 28
  HEIGHT = 28
  KERNEL_SIZE = 3

  TRAIN_STEPS = 1000
  # Global batch size.
  BATCH_SIZE = 1024
  LEARNING_RATE = 0.01
  MOMENTUM = 0.1
  # Whether to evaluate on held-out digits during training.
  EVAL_ON_TEST = True

  MESH_AXIS_NAMES = ('replica', 'data', 'mdl')
  ICI_MESH_SHAPE = [1, 1, 1]

  def task(self) -> Config[tasks_lib.SingleTask]:
    network_p = Config(
      CNN,
      name='mnist_model',
      num_classes=self.NUM_CLASSES,
      kernel_size=self.KERNEL_SIZE,
      height=self.HEIGHT,
      width=self.WIDTH,
    )
    optimizer_p = Config(
      optimizers.ShardedSgd,
      lr_schedule=Config(schedules.Constant, value=1.0),
      learning_rate=self.LEARNING_RATE,
      momentum=self.MOMENTUM,
    )
    task_p = Config(tasks_lib.SingleTask, name='mnist_task')
    task_p.model = Config(
      CNNModel,
      network_tpl=network_p,
      ici_mesh_shape=self.ICI_MESH_SHAPE,
      mesh_axis_names=self.MESH_AXIS_NAMES,
    )
    task_p.train.set(
      learner=Config(learners.Learner, loss_name='loss', optimizer=optimizer_p),
      num_train_steps=self.TRAIN_STEPS,
      eval_skip_train=True,
    )
    return task_p

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    return Config(
      MnistInputSpecsProvider,
      height=self.HEIGHT,
      width=self.WIDTH,
      batch_size=self._batch_size,
    )

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    train = self._input(name='train', is_training=True)
    return [train, self._input(name='test', reset_for_eval=True)]

  def _input(self, **kwargs: object) -> Config[base_input.BaseInput]:
    return Config(MnistDatasetInput, batch_size=self._batch_size, **kwargs)

  @property
  def _batch_size(self) -> int:
    return batch_specs.rows_per_host(self.BATCH_SIZE)
