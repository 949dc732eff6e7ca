# SPDX-License-Identifier: Apache-2.0
"""Settings of a task for training, evaluation, decoding and inference."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pax import learners
from praxis import (
  base_hyperparams,
  base_layer,
  pax_fiddle,
  pytypes,
  value_domains,
)

if TYPE_CHECKING:
  from pax.checkpoints import loading_rules

Parameterizable = base_hyperparams.FiddleBaseParameterizable
_field = value_domains.field
_DURATION = value_domains.Matching(
  r'\s*(\d+(\.\d+)?\s*[smhd]?)?\s*',
  "a number of seconds, or one with s, m, h or d, such as '12h'; empty or None"
  ' for none',
  '12h',
)

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


class DetectNan(enum.StrEnum):
  """When a step is run again to locate its first NaN or inf."""

  OFF = 'off'
  # When the run diverged.
  LOCATE = 'locate'
  # At the first non-finite step of the run, which continues, too.
  FIRST = 'first'


class Train(Parameterizable):
  """Settings of training."""

  # Clips gradients, runs the optimizer, updates variables.
  learner: pax_fiddle.Config[learners.Learner] = pax_fiddle.template_field(
    learners.Learner
  )
  # Step at which training ends.
  num_train_steps: float = _field(1e7, ge=0.0, is_integer=True)
  # Number of microbatches of a batch, whose gradients are added up: a step has
  # the activations of one in memory.
  gradient_accumulation_steps: int = _field(1, ge=1)
  # Steps between checkpoints.
  save_interval_steps: int = _field(5000, ge=1)
  # Besides the newest, keeps one checkpoint per such duration (s, m, h, d).
  save_keep_interval_duration: str | None = _field('12h', _DURATION)
  # Number of newest checkpoints to keep; None keeps all.
  save_max_to_keep: int | None = _field(10, ge=1)
  # Whether variables that do not learn are saved once, in a checkpoint to which
  # the others refer, instead of in each.
  save_frozen_variables_once: bool = False
  # Steps dispatched to the devices before the loop waits for a loss.
  max_inflight_steps: int = _field(2, ge=0)
  # Steps between summaries.
  summary_interval_steps: int = _field(100, ge=1)
  # Steps between log lines with per-example outputs; None is never.
  log_train_output_interval_steps: int | None = _field(None, ge=0)
  # Steps at multiples of this are averaged in a summary; None writes the last
  # step only.
  summary_accumulate_interval_steps: int | None = _field(None, ge=0)
  # Whether a thread writes summaries while training continues.
  async_summary_writing: bool = True
  # Whether summaries hold the norm of each variable.
  variable_norm_summary: bool = True
  # Steps between evaluations during training; None is never.
  eval_interval_steps: int | None = _field(100, ge=0)
  # Whether to skip the evaluation of the next training batch.
  eval_skip_train: bool = False
  # Whether evaluation uses the moving averages of the variables.
  eval_use_ema_states: bool = False
  # Mesh axes that split batches: map_1d ... map_5d, by rank of the array.
  inputs_split_mapping: pytypes.NestedMap | None = None
  # Rules by the directory of another task's checkpoints.
  init_from_checkpoint_rules: dict[
    str, loading_rules.CheckpointLoadingRules
  ] = pax_fiddle.instance_field(dict)
  # Folders of Hugging Face by the networks of the model that they initialize,
  # whatever initializes the other variables.
  init_networks: dict[str, str] = pax_fiddle.instance_field(dict)
  # A folder of PEFT with the initial low-rank updates, and the folder of its
  # model; None: the updates begin anew, or as those of the other variables.
  init_adapter: tuple[str, str] | None = None
  # Steps between decodings during training; None is never.
  decode_interval_steps: int | None = _field(None, ge=0)
  # Steps before the first decoding.
  decode_start_after_n_steps: int = _field(0, ge=0)
  # Whether decoding uses the moving averages of the variables.
  decode_use_ema_states: bool = False
  # Steps between measurements of steps per second.
  compute_steps_per_sec_interval_steps: int = _field(10, ge=1)
  # Number of steps in a profile.
  profiler_num_steps: int = _field(2, ge=0)
  # Least duration of a profile in seconds; it ends with a step.
  profiler_min_duration_sec: float = _field(1.0, ge=0.0)
  # Step at which the profile starts; None is never.
  profiler_capture_step: int | None = _field(None, ge=0)
  # Number of profiled hosts; None is all.
  profiler_max_num_hosts: int | None = _field(None, ge=0)
  # Accepted and ignored: the JAX profiler always traces the host too.
  profiler_capture_host_profile: bool = False
  # Whether eval and decode jobs declare variables in training mode.
  always_use_train_for_model_init: bool = True
  # Whether the first batch must have the shapes of the input specs provider.
  enforce_input_specs: bool = True
  # Seed of initialization, dropout and all other random numbers.
  random_seed: int = _field(1234, ge=-(2**63), le=2**63 - 1)
  # Whether optimizer states are in host memory between steps; this frees memory
  # of the devices and costs the time of the transfers.
  offload_opt_states: bool = False
  # Mesh axes that split optimizer states in addition to the axes that split
  # variables; ('replica',) is ZeRO-1 (arXiv:1910.02054).
  opt_states_mesh_axes: Sequence[str] = ()
  # XLA's options for steps, by name, for each platform: 'tpu', 'gpu' or 'cpu'.
  # They replace the defaults of `pax.partitioning.compiler_options`; options
  # that LIBTPU_INIT_ARGS or XLA_FLAGS name are left to these.
  compiler_options: dict[str, dict[str, bool | int | float | str]] = (
    pax_fiddle.instance_field(dict)
  )
  # Variable collections that a training step may update.
  apply_mutable_list: Sequence[str] = TRAIN_DEFAULT_MUTABLE_LIST
  # Accepted and ignored: each leaf holds its metadata in its own directory.
  tensorstore_metadata_key: str | None = None
  # Accepted and ignored: checkpoints always hold the state of the input.
  enable_input_checkpointing: bool | None = False
  # Orbax transformations to apply when restoring.
  restore_transformations: dict[str, Any] | None = None
  # A checkpoint of another library to restore from, and its reader.
  external_checkpoint_path: Any = None
  external_checkpoint_handler: Any = None
  # Whether speed and remaining time are logged once a minute.
  report_progress_hook: bool = False
  # Steps between explicit garbage collections; 0 leaves collection to Python.
  gc_interval_steps: int = _field(0, ge=0)
  # Number of consecutive steps with a non-finite loss or gradient at which the
  # run ends with exit code 3; 0 or None is never.
  max_consecutive_nonfinite_steps: int | None = _field(50, ge=0)
  # When a step is run again to locate its first NaN or inf: 'off', 'locate'
  # (when the run ends because of it) or 'first' (at the first such step).
  detect_nan: str = _field(
    DetectNan.LOCATE.value,
    value_domains.OneOf(tuple(mode.value for mode in DetectNan)),
  )


class Decode(Parameterizable):
  """Settings of decoding."""

  # Whether to fold the batch index into the key of each batch.
  prng_key_fold_with_batch_index: bool = False
  # Seed of the sampling.
  random_seed: int = _field(1234, ge=-(2**63), le=2**63 - 1)
  # Profile of decoding, as in Train.
  profiler_num_steps: int = _field(0, ge=0)
  profiler_min_duration_sec: float = _field(1.0, ge=0.0)
  profiler_capture_step: int | None = _field(1, ge=0)
  profiler_max_num_hosts: int | None = _field(None, ge=0)
  # Variable collections that a decode step may update.
  apply_mutable_list: Sequence[str] = DECODE_DEFAULT_MUTABLE_LIST
  # Mesh axes over which weights are gathered once for a decode or inference
  # step. Those that other axes of the batch shard are gathered for each token.
  gathered_weight_axes: Sequence[str] = ()
  # Prefix of the names of metrics of evaluation and decoding.
  metrics_prefix: str = 'Metrics/'


class Evaluate(Parameterizable):
  """Settings of evaluation."""

  # Seed of random numbers in evaluation.
  random_seed: int = _field(1234, ge=-(2**63), le=2**63 - 1)
  # Variable collections that an eval step may update.
  apply_mutable_list: Sequence[str] = EVAL_DEFAULT_MUTABLE_LIST


class Infer(Parameterizable):
  """Settings of inference."""

  # Seed of random numbers in inference.
  random_seed: int = _field(1234, ge=-(2**63), le=2**63 - 1)


class OutputFormatType(enum.Enum):
  """File formats of inference outputs."""

  TFRECORD = enum.auto()


class InferWriter(Parameterizable):
  """Checkpoint, computation and output files of inference."""

  # Directory and step of the checkpoint; None is the newest.
  restore_checkpoint_dir: str = ''
  restore_checkpoint_step: int | None = _field(None, ge=0)
  # Computes the outputs.
  inference_runner: pax_fiddle.Config | None = pax_fiddle.template_field(None)
  output_format: OutputFormatType = OutputFormatType.TFRECORD
  # Number of files.
  output_num_shards: int = _field(32, ge=1)


class VariationalNoise(Parameterizable):
  """Gaussian noise added to variables during training.

  References: Graves, https://papers.nips.cc/paper/4329
  """

  # Standard deviation of the noise; 0 adds none.
  vn_scale: float = _field(0.0, ge=0.0)
  # Regex of noisy variables, matched at the start of paths such as
  # `params/lm/softmax/w`.
  vn_regex: str = ''
  # Step from which noise is added.
  vn_start_step: int = _field(0, ge=0)
