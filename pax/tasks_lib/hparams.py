# SPDX-License-Identifier: Apache-2.0
"""The parameters of a task: how it trains, evaluates, decodes and infers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from pax import learners
from praxis import base_hyperparams, base_layer, pax_fiddle, pytypes

Parameterizable = base_hyperparams.FiddleBaseParameterizable

TRAIN_DEFAULT_MUTABLE_LIST = (
  base_layer.AUX_LOSS,
  base_layer.SUMMARIES,
  base_layer.NON_TRAINABLE,
  *base_layer.NON_PAX_VAR_COLLECTION,
)
EVAL_DEFAULT_MUTABLE_LIST = (
  base_layer.AUX_LOSS,
  base_layer.SUMMARIES,
  base_layer.NON_TRAINABLE,
)
DECODE_DEFAULT_MUTABLE_LIST = (base_layer.DECODE_CACHE, base_layer.SUMMARIES)


class CheckpointLoadingRules(NamedTuple):
  """How variables are initialised from another task's checkpoint."""

  # Describes the model that wrote the checkpoint.
  task_p: pax_fiddle.Config
  # (regex on a variable's path here, its path there as a format string).
  load_rules: Sequence[tuple[str, str]]
  # Whether a rule that matches nothing is an error.
  safe_load: bool = False
  # Variables, by regex, that no rule applies to.
  ignore_rules: Sequence[str] | None = None
  # Step of the checkpoint; None is the latest.
  step: int | None = None
  # Whether the step counter is taken over.
  load_step: bool = False
  # Whether the whole optimizer state is taken over.
  load_opt_states: bool = False
  # Whether `ema/...` sources are allowed.
  load_ema_states: bool = True
  # Whether the rules also apply to optimizer variables.
  partial_load_opt_states: bool = False
  # Tells the shapes of the other model's inputs.
  input_specs_provider_p: pax_fiddle.Config | None = None


class Train(Parameterizable):
  """How a task is trained."""

  # Turns gradients into updates.
  learner: pax_fiddle.Config[learners.Learner] = pax_fiddle.template_field(
    learners.Learner
  )
  # Training stops after that many steps.
  num_train_steps: float = 1e7
  # Steps between checkpoints.
  save_interval_steps: int = 5000
  # One more checkpoint is kept for each such duration (suffix s, m, h, d).
  save_keep_interval_duration: str = '12h'
  # Number of newest checkpoints to keep.
  save_max_to_keep: int = 10
  # Steps that may run on the device before the loop waits for a loss.
  max_inflight_steps: int = 2
  # Steps between summaries.
  summary_interval_steps: int = 100
  # Steps between log lines with the per-example outputs; None for never.
  log_train_output_interval_steps: int | None = None
  # Steps averaged in one summary; None for the last alone.
  summary_accumulate_interval_steps: int | None = None
  # Whether a thread writes summaries while training continues.
  async_summary_writing: bool = True
  # Whether summaries hold the norm of each variable.
  variable_norm_summary: bool = True
  # Steps between evaluations while training; None for never.
  eval_interval_steps: int | None = 100
  # Whether the next training batch is not evaluated.
  eval_skip_train: bool = False
  # Whether evaluation uses the averaged variables.
  eval_use_ema_states: bool = False
  # Mesh axes of the input dimensions by rank, under map_1d ... map_5d.
  inputs_split_mapping: pytypes.NestedMap | None = None
  # Checkpoints of other tasks to start from, by directory.
  init_from_checkpoint_rules: dict[str, CheckpointLoadingRules] = (
    pax_fiddle.instance_field(dict)
  )
  # Steps between decodings while training; None for never.
  decode_interval_steps: int | None = None
  # Steps before the first decoding.
  decode_start_after_n_steps: int = 0
  # Whether decoding uses the averaged variables.
  decode_use_ema_states: bool = False
  # Steps between measurements of the speed.
  compute_steps_per_sec_interval_steps: int = 10
  # Steps in one profile.
  profiler_num_steps: int = 2
  # Least duration of a profile in seconds; it ends with a step.
  profiler_min_duration_sec: float = 1.0
  # Step at which a profile starts; None for never.
  profiler_capture_step: int | None = None
  # Hosts that are profiled; None for all.
  profiler_max_num_hosts: int | None = None
  # Accepted and ignored: the JAX profiler always traces the host too.
  profiler_capture_host_profile: bool = False
  # Whether variables are those of training even in eval and decode jobs.
  always_use_train_for_model_init: bool = True
  # Whether the first batch must have the shapes the specs provider tells.
  enforce_input_specs: bool = True
  # Seed of initialisation, dropout and all other randomness.
  random_seed: int = 1234
  # Whether optimizer states wait in the host's memory between steps, which
  # leaves room for a larger model and takes the time of the transfer.
  offload_opt_states: bool = False
  # Mesh axes that split optimizer states besides those that split variables:
  # ('replica',) is ZeRO-1.
  opt_states_mesh_axes: Sequence[str] = ()
  # Variable collections that a training step may write.
  apply_mutable_list: Sequence[str] = TRAIN_DEFAULT_MUTABLE_LIST
  # Accepted and ignored: each leaf holds its metadata in its own directory.
  tensorstore_metadata_key: str | None = None
  # Accepted and ignored: checkpoints always hold the state of the input.
  enable_input_checkpointing: bool | None = False
  # Orbax transformations applied on restoring.
  restore_transformations: dict[str, Any] | None = None
  # A foreign checkpoint to start from, and what reads it.
  external_checkpoint_path: Any = None
  external_checkpoint_handler: Any = None
  # Whether speed and time left are logged once a minute.
  report_progress_hook: bool = False
  # Steps between garbage collections by hand; 0 leaves it to Python.
  gc_interval_steps: int = 0


class Decode(Parameterizable):
  """How a task decodes."""

  # Whether each batch has randomness of its own.
  prng_key_fold_with_batch_index: bool = False
  # Seed of the sampling.
  random_seed: int = 1234
  # The profile of decoding, as in Train.
  profiler_num_steps: int = 0
  profiler_min_duration_sec: float = 1.0
  profiler_capture_step: int = 1
  profiler_max_num_hosts: int | None = None
  # Variable collections that a decode step may write.
  apply_mutable_list: Sequence[str] = DECODE_DEFAULT_MUTABLE_LIST
  # Put before the names of metrics.
  metrics_prefix: str = 'Metrics/'


class Evaluate(Parameterizable):
  """How a task is evaluated."""

  # Seed of whatever is random in evaluation.
  random_seed: int = 1234
  # Variable collections that an eval step may write.
  apply_mutable_list: Sequence[str] = EVAL_DEFAULT_MUTABLE_LIST


class Infer(Parameterizable):
  """How a task infers."""

  # Seed of whatever is random in inference.
  random_seed: int = 1234


class OutputFormatType(enum.Enum):
  """The formats that inference writes."""

  TFRECORD = enum.auto()


class InferWriter(Parameterizable):
  """What inference reads and writes."""

  # Where the checkpoint is, and its step; None is the latest.
  restore_checkpoint_dir: str = ''
  restore_checkpoint_step: int | None = None
  # Computes the outputs.
  inference_runner: pax_fiddle.Config | None = pax_fiddle.template_field(None)
  output_format: OutputFormatType = OutputFormatType.TFRECORD
  # Number of files.
  output_num_shards: int = 32


class VariationalNoise(Parameterizable):
  """Gaussian noise added to variables while training.

  References: Graves, https://papers.nips.cc/paper/4329
  """

  # Standard deviation of the noise; 0 adds none.
  vn_scale: float = 0.0
  # Variables, by regex on their slash path from its start.
  vn_regex: str = ''
  # Step from which noise is added.
  vn_start_step: int = 0
