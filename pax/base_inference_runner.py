# SPDX-License-Identifier: Apache-2.0
"""The interface of inference runners: the computation of `--mode=infer`."""

from __future__ import annotations

import abc
from typing import Any, cast

import jax

from pax import train_states
from pax.files import tf_records
from pax.train_states import Variables
from praxis import base_hyperparams, base_layer, base_model, py_utils, pytypes

NestedMap = pytypes.NestedMap


class BaseInferenceRunner(base_hyperparams.FiddleBaseParameterizable, abc.ABC):
  """Computes outputs per example and serializes them as records.

  Subclasses define `infer` and `output_schema`; a task takes one as
  `task.infer_writer.inference_runner`.
  """

  # The model of the task, set by the task.
  model: base_model.BaseModel | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    # The task sets it before it runs.
    self._model = cast(base_model.BaseModel, self.model)

  @abc.abstractmethod
  def infer(
    self,
    train_state: train_states.TrainState,
    prng_key: jax.Array,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    input_batch: NestedMap,
  ) -> NestedMap:
    """Returns the outputs of a batch; runs under `jax.jit`.

    Args:
      train_state: The restored state.
      prng_key: Key of this batch.
      var_weight_hparams: WeightHParams of the variables.
      input_batch: The batch.

    Returns:
      Arrays with one row per example. Those of padding, whose
      `eval_sample_weights` in the batch are 0, are dropped before
      `serialize_outputs`.
    """

  @property
  @abc.abstractmethod
  def output_schema(self) -> NestedMap:
    """Shape and dtype of each output of one example.

    Leaves have `shape` and `dtype`, such as `jax.ShapeDtypeStruct` or the
    features of TensorFlow Datasets.
    """

  def serialize_outputs(self, outputs: NestedMap) -> list[bytes]:
    """Returns a serialized tf.train.Example for each example.

    Args:
      outputs: The outputs of `infer`, as numpy arrays.

    Raises:
      ValueError: names or shapes differ from `output_schema`.
    """
    schema = tf_records.flat(self.output_schema)
    records = []
    for example in py_utils.tree_unstack(outputs, 0):
      features = tf_records.flat(example)
      _check_shapes(schema, features)
      records.append(tf_records.example(features))
    return records


def _check_shapes(schema: dict[str, Any], features: dict[str, Any]) -> None:
  expected = {name: tuple(leaf.shape) for name, leaf in schema.items()}
  # Elements of an array of objects, such as bytes, have no shape.
  actual = {n: tuple(getattr(x, 'shape', ())) for n, x in features.items()}
  if expected != actual:
    raise ValueError(
      f'output_schema has shapes {expected}, but infer returned {actual} for an'
      ' example; make them equal'
    )
