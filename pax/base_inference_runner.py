# SPDX-License-Identifier: Apache-2.0
"""What `--mode=infer` computes from each batch, and how it is written."""

from __future__ import annotations

import abc
from typing import Any

import jax

from pax import tf_records, train_states
from praxis import base_hyperparams, base_model, py_utils, pytypes

NestedMap = pytypes.NestedMap


class BaseInferenceRunner(base_hyperparams.FiddleBaseParameterizable, abc.ABC):
  """A function of a model and a batch, and the shape of what it returns.

  Subclasses give `infer` and `output_schema`; set one as
  `task.infer_writer.inference_runner`.
  """

  # The model of the task.
  model: base_model.BaseModel | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    self._model = self.model

  @abc.abstractmethod
  def infer(
    self,
    train_state: train_states.TrainState,
    prng_key: jax.Array,
    var_weight_hparams: pytypes.Nested[Any],
    input_batch: NestedMap,
  ) -> NestedMap:
    """Returns arrays with one row per example; it is compiled."""

  @property
  @abc.abstractmethod
  def output_schema(self) -> NestedMap:
    """The shape and dtype of each output of one example.

    Leaves have `shape` and `dtype`, as `jax.ShapeDtypeStruct` and the features
    of TensorFlow Datasets do.
    """

  def serialize_outputs(self, outputs: NestedMap) -> list[bytes]:
    """Returns the record of each example: a serialised tf.train.Example.

    Args:
      outputs: What `infer` returned, as numpy arrays.

    Raises:
      ValueError: the outputs are not what `output_schema` says.
    """
    schema = tf_records.flat(self.output_schema)
    records = []
    for example in py_utils.tree_unstack(outputs, 0):
      features = tf_records.flat(example)
      _check(schema, features)
      records.append(tf_records.example(features))
    return records


def _check(schema: dict[str, Any], features: dict[str, Any]) -> None:
  wanted = {name: tuple(leaf.shape) for name, leaf in schema.items()}
  found = {name: tuple(leaf.shape) for name, leaf in features.items()}
  if wanted != found:
    raise ValueError(
      f'output_schema says {wanted}, and infer returned {found} for an'
      ' example; make them agree'
    )
