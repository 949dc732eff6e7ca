# SPDX-License-Identifier: Apache-2.0
"""Experiments that train in a moment, for tests that start the real binary."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp

from pax import (
  automl,
  base_experiment,
  executors,
  experiment_registry,
  partitioning,
  programs,
  tasks_lib,
)
from pax.learners import stochastic_gradients
from pax.summaries import mfu
from praxis import base_input, base_layer, pax_fiddle, py_utils
from praxis.layers.quantization import linears, quantization_hparams
from tests.pax import tiny

# How long a batch waits for the signal that came with it.
_SIGNAL_SECS = 0.5

NestedMap = py_utils.NestedMap
# A program measures its CPU by matmuls, which take a fifth of its time with the
# default, on cores that other tests use.
mfu._MEASURED_SIZE = 64


class CountedRows(base_input.BaseInput):
  """Batch `i` is drawn from seed `i`, each host taking its rows of it."""

  # Batches there are; 0 for no end.
  num_batches: int = 0
  # Batches that the last host has less.
  fewer_on_last: int = 0
  # Seconds that a batch takes.
  seconds: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    self._count = 0

  def get_next(self) -> NestedMap:
    is_last = self.infeed_host_index == self.num_infeed_hosts - 1
    num_batches = self.num_batches - self.fewer_on_last * is_last
    if self.num_batches and self._count >= num_batches:
      raise StopIteration
    time.sleep(self.seconds)
    self._count += 1
    rows = self.batch_size * self.num_infeed_hosts
    first = self.batch_size * self.infeed_host_index
    whole = tiny.batch(rows=rows, seed=self._count)
    return whole.Transform(lambda x: x[first : first + self.batch_size])

  def reset(self) -> None:
    self._count = 0

  def _get_state_internal(self) -> dict[str, Any]:
    return {'count': self._count}

  def _set_state_internal(self, state: dict[str, Any]) -> None:
    self._count = state['count']


class StoppedRows(CountedRows):
  """Sends this process SIGTERM with one of its batches, once."""

  # A file that is there when the signal was sent.
  sent: str = ''

  def get_next(self) -> NestedMap:
    batch = super().get_next()
    is_first = self.infeed_host_index == 0
    asked = is_first and self.sent and self._count == 2
    if asked and not os.path.exists(self.sent):
      with open(self.sent, 'x', encoding='utf-8'):
        os.kill(os.getpid(), signal.SIGTERM)
      # On a loaded machine the thread that acts on signals may run after the
      # last batch.
      time.sleep(_SIGNAL_SECS)
    return batch


class FailingRows(CountedRows):
  """Fails at one batch, on the last host."""

  fails_at: int = 3

  def get_next(self) -> NestedMap:
    batch = super().get_next()
    is_last = self.infeed_host_index == self.num_infeed_hosts - 1
    if is_last and self._count > self.fails_at:
      raise OSError('the disk with the data is gone')
    return batch


class HangingRows(CountedRows):
  """Never gives a batch."""

  # Number of batches before it.
  hangs_at: int = 4
  # Host that lacks it; -1: all hosts.
  host: int = -1
  # File that is written before the wait.
  waits: str = ''

  def get_next(self) -> NestedMap:
    hosts = (-1, self.infeed_host_index)
    if self._count == self.hangs_at and self.host in hosts:
      if self.waits:
        pathlib.Path(self.waits).touch()
      time.sleep(3600)
    return super().get_next()


class SignallingRows(CountedRows):
  """Sends this process a signal with one of its batches."""

  signal_at: int = 5
  number: int = int(signal.SIGTERM)

  def get_next(self) -> NestedMap:
    batch = super().get_next()
    if self._count == self.signal_at:
      os.kill(os.getpid(), self.number)
    return batch


class StopAt:
  """An early stopping function."""

  def __init__(self, step: int):
    self._step = step

  def __call__(self, metrics, mode, step, is_last, path) -> bool:
    assert not mode.has_eval or 'eval_test_held_out/metrics/rows' in metrics
    return step >= self._step


@experiment_registry.register
class TinySpmd(base_experiment.BaseExperiment):
  """A regression over a mesh."""

  ICI_MESH_SHAPE: list[int] | None = [1, 1, 1]
  BATCH_SIZE = 8
  NUM_STEPS = 20
  SAVE_EVERY = 10
  HIDDEN = 16
  NOISE = 0.5
  SECONDS = 0.0
  # Steps that are never evaluated, unless --eval_on_test.
  EVAL_EVERY = 10
  INPUT = CountedRows
  EMA_DECAY = 0.0
  # Stops early after this step.
  STOP_AT: int | None = None
  # Batches of evaluation that the last host has less.
  FEWER_ON_LAST = 0
  # A file; --mode=eval and decode get a SIGTERM unless it is there.
  SENT = ''

  def task(self) -> Any:
    config = tiny.task(
      mesh=self.ICI_MESH_SHAPE, hidden=self.HIDDEN, noise=self.NOISE
    )
    config.train.num_train_steps = self.NUM_STEPS
    config.train.save_interval_steps = self.SAVE_EVERY
    config.train.eval_interval_steps = self.EVAL_EVERY
    config.train.summary_interval_steps = 1
    config.train.variable_norm_summary = False
    config.train.decode_interval_steps = self.SAVE_EVERY
    config.train.learner.optimizer.ema_decay = self.EMA_DECAY
    config.infer_writer = pax_fiddle.Config(
      tasks_lib.SingleTask.InferWriter,
      inference_runner=pax_fiddle.Config(tiny.TinyRunner),
      output_num_shards=2,
    )
    if self.STOP_AT is not None:
      config.early_stopping_fn = pax_fiddle.Config(StopAt, step=self.STOP_AT)
    return config

  def datasets(self) -> list[Any]:
    train = pax_fiddle.Config(
      self.INPUT,
      batch_size=self.BATCH_SIZE,
      is_training=True,
      seconds=self.SECONDS,
    )
    held_out = self._finite('held_out', 3)
    return [train, held_out.set(fewer_on_last=self.FEWER_ON_LAST)]

  def decode_datasets(self) -> list[Any]:
    return [self._finite('prompts', 2)]

  def _finite(self, name: str, num_batches: int) -> Any:
    return pax_fiddle.Config(
      StoppedRows,
      name=name,
      batch_size=self.BATCH_SIZE,
      num_batches=num_batches,
      reset_for_eval=True,
      sent=self.SENT,
    )


@experiment_registry.register
class TinyPmap(TinySpmd):
  """The same on replicas."""

  ICI_MESH_SHAPE = None


@experiment_registry.register
class TinyInt8(TinySpmd):
  """The same with weights of int8, which --mode=quantize writes."""

  def task(self) -> Any:
    config = super().task()
    config.model.linear_tpl = pax_fiddle.Config(
      linears.Linear, quantization=quantization_hparams.QuantizationParams()
    )
    return config


@experiment_registry.register
class TinyInt8Lora(TinyInt8):
  """Trains low-rank residuals of weights of int8."""

  def task(self) -> Any:
    config = super().task()
    linear = config.model.linear_tpl
    config.model.linear_tpl = pax_fiddle.Config(
      linears.LinearLoRA, lora_rank=2, quantization=linear.quantization
    )
    config.train.learner.bprop_variable_exclusion = '.*/w(_quantized_scale)?'
    return config


class Divider(base_layer.BaseLayer):
  """Divides by zero in some training steps, otherwise by one."""

  first_step: int = 0
  num_steps: int = 0
  rows_per_step: int = 0

  def setup(self):
    collections = base_layer.WeightHParamsCollection
    self.create_variable(
      'rows',
      base_layer.WeightHParams(
        shape=[],
        init=base_layer.WeightInit.Constant(0.0),
        collections=[collections.REQUIRES_SUM_SYNC],
      ),
      trainable=False,
    )

  def __call__(self, x):
    rows = self.get_var('rows')
    if not self.do_eval:
      self.update_var('rows', rows + jnp.float32(x.shape[0]))
    step = rows / self.rows_per_step
    is_bad = (step >= self.first_step) & (
      step < self.first_step + self.num_steps
    )
    divisor = jnp.where(is_bad & (not self.do_eval), 0.0, 1.0)
    return x / divisor.astype(x.dtype)


class DividingModel(tiny.TinyModel):
  """A TinyModel with a Divider between its layers."""

  divider_tpl: Any = pax_fiddle.template_field(Divider)

  def setup(self):
    super().setup()
    self.create_child('divider', self.divider_tpl.clone())

  def compute_predictions(self, input_batch):
    return super().compute_predictions(input_batch) + self.divider(
      input_batch.x.mean(axis=1)
    )


@experiment_registry.register
class TinyDiverging(TinySpmd):
  """Has non-finite steps from one step on."""

  SAVE_EVERY = 2
  EVAL_EVERY = None
  NOISE = 0.0
  FIRST_BAD_STEP = 7
  NUM_BAD_STEPS = 1000
  MAX_BAD_STEPS = 5
  SKIPS = True
  # Rows of the global batch.
  ROWS = TinySpmd.BATCH_SIZE

  def task(self):
    config = super().task()
    model = config.model
    fields = ('name', 'hidden', 'noise', 'ici_mesh_shape', 'mesh_axis_names')
    config.model = pax_fiddle.Config(
      DividingModel, **{name: getattr(model, name) for name in fields}
    )
    config.model.divider_tpl.set(
      first_step=self.FIRST_BAD_STEP,
      num_steps=self.NUM_BAD_STEPS,
      rows_per_step=self.ROWS,
    )
    config.train.max_consecutive_nonfinite_steps = self.MAX_BAD_STEPS
    config.train.save_max_to_keep = 1
    config.train.learner.check_valid_step = self.SKIPS
    return config


@experiment_registry.register
class TinyDivergingPmap(TinyDiverging):
  """The same on replicas."""

  ICI_MESH_SHAPE = None


@experiment_registry.register
class TinyLongEval(TinySpmd):
  """Only a signal ends its evaluation."""

  def datasets(self):
    return [super().datasets()[0], self._finite('held_out', 10**6)]


@experiment_registry.register
class TinyStopped(TinySpmd):
  """Gets a signal with its fifth batch, or one after it."""

  INPUT = SignallingRows


@experiment_registry.register
class TinyHanging(TinySpmd):
  """Its data come to a halt."""

  INPUT = HangingRows


@experiment_registry.register
class TinyBroken(TinySpmd):
  """Its data fail."""

  INPUT = FailingRows


class HalfTrain(programs.SingleTaskTrainProgram):
  """Stops half way."""

  def should_run(self, state, step):
    return 2 * step < TinyOwn.NUM_STEPS


class StuckTrain(programs.SingleTaskTrainProgram):
  """Never ends its third step."""

  def run(self, state, step):
    if step == 2:
      (self._job_log_dir / 'stuck').touch()
      time.sleep(3600)
    return super().run(state, step)


@experiment_registry.register
class TinyStuck(TinySpmd):
  """Ends neither its third step nor by itself."""

  def train_programs(self):
    return [StuckTrain()]


class LateEval(programs.SingleTaskEvalProgram):
  """Does not look at step 10."""

  def should_run(self, state, step):
    return step != 10


class TellingExecutor(executors.DefaultExecutor):
  """Leaves a note."""

  def start(self):
    super().start()
    (self._job_log_dir / 'note').write_text(self.outcome.value)


@experiment_registry.register
class TinyOwn(TinySpmd):
  """Has programs, a partitioner and an executor of its own."""

  NUM_STEPS = 40

  def train_programs(self):
    return [HalfTrain()]

  def eval_programs(self):
    return [LateEval(self._finite('mine', 1))]

  def executor(self):
    return TellingExecutor()

  def partitioner(self):
    devices = jax.devices()[:1]
    return partitioning.create_partitioner(self.task(), devices=devices)


@experiment_registry.register
class TinySweep(TinySpmd):
  """Four trials of a few steps."""

  NUM_STEPS = 4
  SAVE_EVERY = 4
  EVAL_EVERY = 2
  HIDDEN = automl.oneof([4, 8])
  NOISE = automl.oneof([0.0, 0.5])

  def search(self):
    return automl.hyperparameter_tuning(
      automl.Metric.eval('loss'), goal='minimize'
    )


@experiment_registry.register
class TinyTuned(TinySweep):
  """A search for the noise that hurts least, which is none."""

  HIDDEN = automl.intv(4, 8)
  NOISE = automl.floatv(1e-3, 8.0, 'log')


@experiment_registry.register
class TinyPrivate(TinySpmd):
  """DP-SGD on 100 examples."""

  NUM_STEPS = 4

  def task(self) -> Any:
    config = super().task()
    config.train.learner.stochastic_gradient = pax_fiddle.Config(
      stochastic_gradients.DpSgdStochasticGradient,
      l2_norm_clip=1.0,
      noise_multiplier=2.0,
      num_examples=100,
    )
    return config


@experiment_registry.register
class TinyParts(TinySweep):
  """A trial trains a narrow model, then a wide one."""

  NUM_STEPS = 2
  HIDDEN = 4

  @classmethod
  def sub_experiments(cls):
    return {'narrow': cls, 'wide': type(cls.__name__, (cls,), {'HIDDEN': 8})}

  def search(self):
    search = super().search()
    search.search_reward.metric = automl.Metric.eval(
      'loss', aggregator=automl.MetricAggregator.MAX
    )
    return search
