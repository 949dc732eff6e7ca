# SPDX-License-Identifier: Apache-2.0
"""Programs and executors as they are written for paxml.

Only the tasks and inputs are those of the tests of Pax.
"""

from __future__ import annotations

import importlib

import jax
import numpy as np

from paxml import decode_programs, eval_lib, summary_utils, trainer_lib
from praxis import base_hyperparams, base_layer, trees
from tests.integration import experiments

# Modules of paxml without a file, which static checks do not know.
base_executor, executors, experiment_registry, partitioning, programs = (
  importlib.import_module(f'paxml.{name}')
  for name in (
    'base_executor',
    'executors',
    'experiment_registry',
    'partitioning',
    'programs',
  )
)

instantiate = base_hyperparams.instantiate
BaseStepFnStaticArgs = trainer_lib.BaseStepFnStaticArgs
# One host: its batch is the global one.
_ROWS = experiments.TinySpmd.BATCH_SIZE


def train_step(
  jax_task,
  states,
  prng_key,
  inputs,
  fprop_dtype,
  var_weight_hparams,
  static_args=None,
):
  """The train step of paxml, with one more summary."""
  assert static_args.unpadded_global_batch_size == _ROWS
  new_states, output = trainer_lib.train_step_single_learner(
    jax_task,
    states,
    prng_key,
    inputs,
    fprop_dtype,
    var_weight_hparams,
    static_args,
  )
  summaries = dict(output.summary_tensors)
  summaries['twice_loss_scalar'] = 2 * output.loss
  return new_states, output.replace(summary_tensors=summaries)


class PartitioningProgram(programs.SingleTaskTrainProgram):
  """Trains with a step function that it partitions."""

  def __init__(self):
    super().__init__()
    self._partitioned = None

  def setup(
    self,
    task,
    train_input,
    partitioner,
    job_log_dir,
    train_prng_seed,
    eval_prng_seed,
    init_step,
    enable_summary_writer=True,
  ):
    super().setup(
      task,
      train_input,
      partitioner,
      job_log_dir,
      train_prng_seed,
      eval_prng_seed,
      init_step,
      enable_summary_writer,
    )
    (job_log_dir / 'init_step').write_text(str(init_step))

  def _partition(self, inputs):
    if self._partitioned is None:
      self._partitioned = self._partitioner.partition(
        train_step, trees.get_shape_dtype(inputs), is_eval=False
      )
    return self._partitioned

  def train_input_partition_spec(self, inputs):
    return self._partition(inputs)[1]

  def train_step(self, step, state, prng_key, inputs, static_args):
    step_fn, _ = self._partition(inputs)
    return step + 1, *step_fn(state, prng_key, inputs, static_args)


class RunProgram(PartitioningProgram):
  """Reads, places and reports its batches, too."""

  def run(self, state, step):
    batch = self._train_input.get_next_padded()
    assert all(isinstance(x, np.ndarray) for x in batch.Flatten())
    inputs = self._partitioner.preprocess_inputs(
      self._train_input, batch, self.train_input_partition_spec(batch)
    )
    new_step, new_state, output = self.train_step(
      step,
      state,
      self._train_prng_seed,
      inputs,
      BaseStepFnStaticArgs(
        unpadded_global_batch_size=self._train_unpadded_global_batch_size
      ),
    )
    steps_per_sec = self._maybe_write_summaries(step, new_step, output)
    with self.summary_writer.as_default():
      summary_utils.write_summary_tensor(
        step, 'own_scalar', 7.0, base_layer.SummaryType.SCALAR
      )
    return programs.TrainProgramOutput(
      new_state,
      loss=output.loss,
      weighted_scalars=output.weighted_scalars,
      new_train_step=new_step,
      steps_per_sec=steps_per_sec,
      eval_train_metrics=None,
    )


class PartitioningEvalProgram(programs.SingleTaskEvalProgram):
  """Evaluates with the step function of paxml, partitioned."""

  def _get_eval_step(self, inputs):
    return self._partitioner.partition(
      trainer_lib.eval_step_single_learner,
      inputs_shape_dtype=trees.get_shape_dtype(inputs),
      is_eval=True,
    )


class NotingExecutor(executors.DefaultExecutor):
  """Acts before and after the loop."""

  def setup(self, jax_task, job_log_dir, *args, **kwargs):
    super().setup(jax_task, job_log_dir, *args, **kwargs)
    (job_log_dir / 'set_up').write_text(str(self._total_num_params))

  def start(self):
    super().start()
    (self._job_log_dir / 'ended').touch()


class LoopExecutor(base_executor.BaseExecutor):
  """Has the training loop of paxml."""

  def setup(
    self,
    jax_task,
    job_log_dir,
    checkpointer,
    partitioner,
    input_specs_provider,
    train_input_p,
    train_program,
    eval_programs,
    decode_programs,
    early_stopping_fn,
    exit_after_ondemand_checkpoint=False,
    enable_summary_writer=True,
  ):
    assert early_stopping_fn is None
    self._task = jax_task
    self._job_log_dir = job_log_dir
    self._checkpointer = checkpointer
    self._partitioner = partitioner
    self._train_program = train_program
    self._eval_programs = eval_programs
    self._decode_programs = decode_programs
    self._exits = exit_after_ondemand_checkpoint
    self._enable_summary_writer = enable_summary_writer
    root_key = jax.random.PRNGKey(jax_task.train.random_seed)
    train_input_p = partitioner.preprocess_input_config(train_input_p)
    self._train_input = instantiate(train_input_p)
    partitioner.setup(
      jax_task,
      root_key,
      train_inputs_shape_dtype=(
        trainer_lib.get_train_input_specs_for_model_init(
          jax_task, input_specs_provider
        )
      ),
      job_log_dir=job_log_dir,
    )
    metadata = partitioner.get_train_state_metadata(
      unpadded_global_batch_size=train_input_p.cls.get_global_batch_size(
        train_input_p
      )
    )
    self._state, _, num_params, root_key = checkpointer.get_model_states(
      partitioner, metadata, root_key, self._train_input
    )
    assert num_params > 0
    self._keys = jax.random.split(root_key, 3)

  def start(self):
    train_key, eval_key, decode_key = (
      self._partitioner.preprocess_prng_key(key) for key in self._keys
    )
    state, step = self._state, int(self._state.step)
    restored = self._checkpointer.step_to_restore
    assert restored is None or restored == step
    program, task = self._train_program, self._task
    enabled = self._enable_summary_writer
    program.setup(
      task,
      self._train_input,
      self._partitioner,
      self._job_log_dir,
      train_key,
      eval_key,
      step,
      enabled,
    )
    for eval_ in self._eval_programs:
      eval_.setup(task, self._partitioner, self._job_log_dir, eval_key, enabled)
    for decode in self._decode_programs:
      decode.setup(
        task, self._partitioner, self._job_log_dir, decode_key, enabled
      )
    trainer_lib.check_unique_names([p.eval_input for p in self._eval_programs])
    metadata = self._partitioner.get_train_state_metadata()
    while True:
      self._checkpointer.save_if_needed(
        step,
        state,
        metadata.unpadded_global_shapes,
        metadata.partition_specs,
        self._train_input,
      )
      if self._exits and self._checkpointer.reached_preemption(step):
        raise SystemExit(1)
      if not program.should_run(state, step):
        break
      output = program.run(program.update_state(state, step), step)
      state, step = output.state, output.new_train_step
      if step % task.train.eval_interval_steps == 0:
        self._evaluate(state, step)
    self._checkpointer.save_final(
      step,
      partitioned_train_state=state,
      train_state_unpadded_shape_dtype_struct=metadata.unpadded_global_shapes,
      train_state_pspecs=metadata.partition_specs,
      train_input_pipeline=self._train_input,
    )
    self._checkpointer.close()
    for each in (program, *self._eval_programs, *self._decode_programs):
      each.shutdown()

  def _evaluate(self, state, step):
    eval_state = programs.get_eval_train_state(
      self._task, state, self._task.train.eval_use_ema_states
    )
    metrics, _ = eval_lib.run_eval_programs(
      eval_programs=self._eval_programs, train_state=eval_state, step=step
    )
    assert set(metrics.metrics_list[0]) >= {'rows', 'total_loss'}
    decoded, _ = eval_lib.run_decode_programs(
      decode_programs=self._decode_programs, train_state=eval_state, step=step
    )
    assert len(decoded.input_names) == len(self._decode_programs)


@experiment_registry.register
class Default(experiments.TinySpmd):
  """The same experiment without programs of its own."""

  NOISE = 0.0
  NUM_STEPS = 6
  SAVE_EVERY = 3
  EVAL_EVERY = 3


@experiment_registry.register
class Partitioning(Default):
  """A train and an eval program that partition their steps."""

  def train_programs(self):
    return [PartitioningProgram()]

  def eval_programs(self):
    return [PartitioningEvalProgram(self.eval_datasets()[0])]

  def partitioner(self):
    return partitioning.create_partitioner(self.task(), reshard_inputs=True)


@experiment_registry.register
class Running(Default):
  """A train program with `run`, and an executor around the loop."""

  def train_programs(self):
    return [RunProgram()]

  def executor(self):
    return NotingExecutor()


@experiment_registry.register
class Looping(Default):
  """An executor with a loop."""

  def decode_programs(self):
    return [decode_programs.SingleTaskDecodeProgram(self._finite('prompts', 2))]

  def executor(self):
    return LoopExecutor()


@experiment_registry.register
class LoopingStopped(Looping):
  """Receives SIGTERM with its fifth batch."""

  INPUT = experiments.SignallingRows
  NUM_STEPS = 500
  SAVE_EVERY = 500
  EVAL_EVERY = 500


@experiment_registry.register
class LoopingDiverging(experiments.TinyDiverging):
  """An executor with a loop, and non-finite steps from step 7 on."""

  EVAL_EVERY = 100

  def executor(self):
    return LoopExecutor()
