# SPDX-License-Identifier: Apache-2.0
"""A task with one model and one learner."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from pax import (
  base_inference_runner,
  base_metrics,
  base_task,
  checkpoints,
  learners,
  train_states,
)
from pax.checkpoints import init_from
from pax.tasks_lib import hparams, state, variational_noise
from pax.train_states import Variables
from praxis import base_layer, base_model, pax_fiddle, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
TrainState = train_states.TrainState
# A pytree of the variables.
_VarsT = TypeVar('_VarsT')
Config = pax_fiddle.Config

# (metrics, running_mode, global_step, is_last_ckpt, checkpoint_path) -> stop?
EarlyStoppingFn = Callable[
  [Mapping[str, float], Any, int, bool, str | None], bool
]

_NO_INFERENCE_RUNNER = (
  'task.infer_writer.inference_runner is not set; set it to a Config of a'
  ' BaseInferenceRunner'
)


class SingleTask(base_task.BaseTask):
  """A model, its learner, and the settings of all modes."""

  Train = hparams.Train
  Decode = hparams.Decode
  Evaluate = hparams.Evaluate
  Infer = hparams.Infer
  InferWriter = hparams.InferWriter
  VariationalNoise = hparams.VariationalNoise
  TrainHParams = hparams.Train.HParams
  DecodeHParams = hparams.Decode.HParams
  EvaluateHParams = hparams.Evaluate.HParams
  InferHParams = hparams.Infer.HParams
  InferWriterHParams = hparams.InferWriter.HParams
  VariationalNoiseHParams = hparams.VariationalNoise.HParams

  class TrackDecoderMetricMode(enum.StrEnum):
    """Whether the best decoder metric is the largest or the smallest."""

    MAX = 'max'
    MIN = 'min'

  # The model; a Config is built with the task.
  model: base_model.BaseModel = pax_fiddle.field(default=None)
  # Settings of training, decoding, evaluation and inference.
  train: Config[hparams.Train] = pax_fiddle.template_field(hparams.Train)
  decode: Config[hparams.Decode] = pax_fiddle.template_field(hparams.Decode)
  evaluate: Config[hparams.Evaluate] = pax_fiddle.template_field(
    hparams.Evaluate
  )
  infer: Config[hparams.Infer] = pax_fiddle.template_field(hparams.Infer)
  # Aggregates weighted scalars over batches; None is the weighted mean.
  metrics: Config[base_metrics.BaseMetrics] | None = pax_fiddle.template_field(
    None
  )
  # Computes the loss from weighted scalars; excludes `train.learner.loss_name`.
  loss_aggregator: Config[base_metrics.LossAggregator] | None = (
    pax_fiddle.template_field(None)
  )
  # Noise added to the variables during training.
  vn: Config[hparams.VariationalNoise] = pax_fiddle.template_field(
    hparams.VariationalNoise
  )
  # Checkpoint, computation and output files of inference.
  infer_writer: Config[hparams.InferWriter] | None = pax_fiddle.template_field(
    None
  )
  # Decides after each evaluation whether training stops. All processes call it:
  # it must return the same on each, so not depend on clocks or speeds
  # (`train_steps_per_sec`), which differ.
  early_stopping_fn: EarlyStoppingFn | None = None
  # Summaries of at most this verbosity are recorded.
  summary_verbosity: int = 3

  def __post_init__(self) -> None:
    super().__post_init__()
    if isinstance(self.model, Config):
      self.model = self.model.Instantiate()
    if not isinstance(self.model, base_model.BaseModel):
      raise ValueError(
        f'task.model must be a BaseModel or its Config, got {self.model!r}'
      )
    if self.train is None:
      raise ValueError('task.train must be a Config of its settings, got None')
    self._learner = _build_learner(self.train.learner)
    self._loss = _build_loss(self._learner.loss_name, self.loss_aggregator)
    self._inference_runner = self._build_inference_runner()
    if not isinstance(self.metrics, Config | None):
      raise ValueError(
        f'task.metrics must be a Config or None, got {self.metrics!r}'
      )
    if self.early_stopping_fn is not None and not callable(
      self.early_stopping_fn
    ):
      raise ValueError(
        'task.early_stopping_fn must be a function, the Config of an object'
        f' that can be called, or None, got {self.early_stopping_fn!r}'
      )
    self._metrics = (self.metrics or base_metrics.MeanMetrics.config()).clone()

  @property
  def learners(self) -> list[learners.Learner]:
    """One learner for each entry of `TrainState.opt_states`."""
    return [self._learner]

  @property
  def loss_aggregator_inst(self) -> base_metrics.LossAggregator:
    """Computes the loss from the weighted scalars of a batch."""
    return self._loss

  @property
  def metrics_aggregator(self) -> base_metrics.BaseMetrics:
    """A new aggregator of metrics over batches."""
    return self._metrics.Instantiate()

  @property
  def infer_settings(self) -> Config[hparams.InferWriter]:
    """`infer_writer` of a task with an inference runner.

    Raises:
      ValueError: It is not set.
    """
    if self.infer_writer is None:
      raise ValueError(_NO_INFERENCE_RUNNER)
    return self.infer_writer

  @property
  def inference_runner(self) -> base_inference_runner.BaseInferenceRunner:
    """The computation of `--mode=infer`.

    Raises:
      ValueError: `infer_writer.inference_runner` is not set.
    """
    if self._inference_runner is None:
      raise ValueError(_NO_INFERENCE_RUNNER)
    return self._inference_runner

  @property
  def has_ema_decay(self) -> bool:
    """Whether the optimizer has a moving average of the variables."""
    return self._learner.optimizer.ema_decay > 0.0

  def create_opt_states(
    self,
    mdl_vars: Nested[JTensor],
    var_weight_hparams: Variables[base_layer.WeightHParams],
  ) -> list[Nested[JTensor]]:
    """Returns the initial optimizer states of these variables."""
    return state.create_opt_states(mdl_vars, var_weight_hparams, self.learners)

  def create_train_state(
    self,
    mdl_vars: Variables[JTensor],
    var_weight_hparams: Variables[base_layer.WeightHParams],
    discard_opt_states: bool = False,
  ) -> TrainState:
    """Returns the train state at step 0 with these variables."""
    return state.create_state(
      mdl_vars, var_weight_hparams, discard_opt_states, self.learners
    )

  def create_train_state_unpadded_shapes(
    self,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    discard_opt_states: bool = False,
  ) -> TrainState:
    """Returns the train state with a ShapeDtypeStruct for each array."""
    return state.create_state_unpadded_shapes(
      var_weight_hparams, discard_opt_states, self.learners
    )

  # No shape is padded: a dimension that the mesh does not divide is not split.
  create_train_state_padded_shapes = create_train_state_unpadded_shapes

  def create_train_state_partition_specs(
    self,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    discard_opt_states: bool = False,
  ) -> TrainState | None:
    """Returns the train state with a PartitionSpec for each array.

    None if the model has no mesh.
    """
    if self.model.mesh_shape is None:
      return None
    return state.create_state_partition_specs(
      var_weight_hparams,
      self.model.mesh_shape,
      self.model.mesh_axis_names,
      discard_opt_states,
      self.learners,
    )

  def maybe_adjust_train_state(
    self,
    step: JTensor,
    mdl_vars: _VarsT,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    prng_key: jax.Array,
  ) -> _VarsT:
    """Returns the variables, with variational noise if `vn.vn_scale` is set.

    Args:
      step: The step.
      mdl_vars: The variables.
      var_weight_hparams: WeightHParams of the variables; subclasses may use it.
      prng_key: Key of the noise.
    """
    if self.vn.vn_scale == 0.0:
      return mdl_vars
    return variational_noise.add_noise(self.vn, step, mdl_vars, prng_key)

  def init_from_checkpoint_rules(self) -> Mapping[str, init_from.Rules]:
    """Returns the rules of `train`, by directory of the checkpoints.

    Raises:
      ValueError: Variables are to be initialized from folders, too.
    """
    for name in ('init_networks', 'init_adapter'):
      if value := getattr(self.train, name):
        raise ValueError(
          f'task.train.{name} must be empty where only rules initialize a'
          f' state, got {value}; train by pax.main, or call'
          ' pax.programs.initial_state.create'
        )
    rules = self.train.init_from_checkpoint_rules
    if isinstance(rules, Config):
      rules = rules.Instantiate()
    return rules or {}

  def apply_init_checkpoint_rules(
    self,
    train_state: TrainState,
    train_state_provenance: train_states.TrainStateProvenance,
    train_state_partition_specs: TrainState | None = None,
    global_mesh: jax.sharding.Mesh | None = None,
    checkpoint_type: checkpoints.CheckpointType = (
      checkpoints.CheckpointType.FLAX
    ),
  ) -> tuple[TrainState, train_states.TrainStateProvenance, bool]:
    """Loads what `train.init_from_checkpoint_rules` select into a state.

    Args:
      train_state: The initial state; replaced leaves are deleted.
      train_state_provenance: The origin of each leaf.
      train_state_partition_specs: PartitionSpecs of the state over the mesh;
        None keeps the shardings of the leaves.
      global_mesh: The mesh.
      checkpoint_type: Accepted and ignored: the format is that of the files.

    Returns:
      The state; its provenance; and whether the caller has to initialize the
      optimizer states again from the loaded variables.
    """
    del checkpoint_type
    all_rules = self.init_from_checkpoint_rules()
    if not all_rules:
      return train_state, train_state_provenance, False
    return init_from.apply_rules(
      train_state,
      train_state_provenance,
      all_rules,
      train_state_partition_specs,
      global_mesh,
    )

  def _build_inference_runner(
    self,
  ) -> base_inference_runner.BaseInferenceRunner | None:
    if self.infer_writer is None or self.infer_writer.inference_runner is None:
      return None
    return self.infer_writer.inference_runner.clone().Instantiate(
      model=self.model
    )


def _build_learner(config: Any) -> learners.Learner:
  if not isinstance(config, Config):
    raise ValueError(
      f'task.train.learner must be one Config[Learner], got {config!r}'
    )
  config = config.clone()
  if not config.name:
    config.name = 'learner_0'
  return config.Instantiate()


def _build_loss(
  loss_name: str | None, config: Config | None
) -> base_metrics.LossAggregator:
  """Returns the aggregator of `config`, or that of the named scalar."""
  if (loss_name is None) == (config is None):
    actual = 'neither' if config is None else 'both'
    raise ValueError(
      'set either task.train.learner.loss_name or task.loss_aggregator, got '
      f'{actual}; most models use loss_name="total_loss"'
    )
  if config is None:
    config = base_metrics.LossAggregator.config(loss_key=loss_name)
  return config.Instantiate()
