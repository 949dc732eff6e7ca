# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The order of the loop, seen from its collaborators."""

from __future__ import annotations

import dataclasses
import functools
import json
import socket
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import io_utils, programs, summaries
from pax.programs import early_stopping, eval_runner, program, step_status
from pax.programs import train as train_program
from pax.programs.jobs import Outcome, TrainJob
from pax.steps import step_types
from praxis import base_input, py_utils
from tests.pax.programs import host_partitioner
from tests.testing import noop_checkpointer

NestedMap = py_utils.NestedMap


class Counting(base_input.BaseInput):
  """Batch i holds i."""

  num_batches: int = 0

  def __post_init__(self):
    super().__post_init__()
    self._count = 0

  def get_next(self):
    if self.num_batches and self._count >= self.num_batches:
      raise StopIteration
    self._count += 1
    return NestedMap(x=np.float32([self._count]))

  def _get_state_internal(self):
    return {'count': self._count}

  def _set_state_internal(self, state):
    self._count = state['count']


class Recorder(noop_checkpointer.NoopCheckpointer):
  """Remembers what the loop asked to be saved."""

  def __init__(self):
    self.saves = []

  def save(self, step, state, input_state=None, *, force=False):
    self.saves.append((step, float(state), input_state['count'], force))
    return force


class FakeWriter(summaries.NoopWriter):
  """Remembers the losses, and which metrics there were."""

  def __init__(self):
    self.steps = []
    self.metrics = []

  def write(self, step, scalars, split='train'):
    scalars = scalars() if callable(scalars) else scalars
    loss = scalars.get('loss')
    self.steps.append((split, step, loss if loss is None else float(loss)))
    self.metrics.append(sorted(tag for tag in scalars if '/batch' in tag))


class FakeProgress:
  def __init__(self):
    self.shown = []
    self.printed = []
    self.input_waits = []

  def update(self, step, metrics, *, rate, mfu, input_wait):
    self.shown.append((step, metrics.get('loss')))
    self.input_waits.append(input_wait)

  def print(self, text):
    self.printed.append(text)

  def close(self):
    pass


class StopAt:
  def __init__(self, step=None):
    self._left = step

  def stop_requested(self):
    if self._left is None:
      return False
    self._left -= 1
    return self._left < 0

  def save_requested(self):
    return False

  def raise_if_requested(self):
    pass

  def raise_if_wait_ends(self):
    pass

  def begin_saving(self):
    pass


def _step(state, batch, key):
  """The state sums the batches; the loss is the batch."""
  metrics = {'batch': (batch.x[0], jnp.float32(1))}
  output = step_types.pack_output(
    step_types.StepFnOutput(batch.x[0], metrics, NestedMap(), {})
  )
  return state + batch.x[0], output


class Partitioner(host_partitioner.HostPartitioner):
  """Knows the step."""

  num_params = 0
  var_weight_hparams = {'params': {}}
  input_spec = NestedMap(x=np.zeros([1], np.float32))
  devices = jax.devices()[:1]

  def __init__(self, settings):
    self.task = types.SimpleNamespace(
      train=settings,
      learners=[
        types.SimpleNamespace(
          check_valid_step=False,
          enable_skip_step_on_gradient_anomalies=True,
          stochastic_gradient=None,
        )
      ],
      early_stopping_fn=None,
      evaluate=types.SimpleNamespace(random_seed=1),
      decode=types.SimpleNamespace(metrics_prefix='Metrics/'),
    )

  def put_batch(self, batch):
    return NestedMap(x=jnp.asarray(batch.x))

  def train_step_for(self, batch):
    return _step


SETTINGS = {
  'num_train_steps': 4,
  'random_seed': 1,
  'summary_interval_steps': 2,
  'summary_accumulate_interval_steps': None,
  'log_train_output_interval_steps': None,
  'eval_interval_steps': None,
  'eval_skip_train': True,
  'eval_use_ema_states': False,
  'decode_interval_steps': None,
  'decode_start_after_n_steps': 0,
  'decode_use_ema_states': False,
  'gc_interval_steps': 0,
  'report_progress_hook': True,
  'compute_steps_per_sec_interval_steps': 10,
  'profiler_capture_step': None,
  'profiler_num_steps': 2,
  'profiler_min_duration_sec': 0.0,
  'profiler_max_num_hosts': None,
  'max_inflight_steps': 2,
  'max_consecutive_nonfinite_steps': 3,
  'detect_nan': 'locate',
}


def _run(tmp_path, *, stop_at=None, first=0, num_batches=0, **changes):
  parts = {
    name: changes.pop(name)
    for name in ('train_program', 'early_stopping')
    if name in changes
  }
  settings = types.SimpleNamespace(**SETTINGS | changes)
  inp = Counting.config(
    batch_size=1, is_training=True, num_batches=num_batches
  ).Instantiate()
  inp.set_state({'count': first})
  sinks = {'writer': FakeWriter(), 'progress': FakeProgress()}
  return TrainJob(
    job_log_dir=str(tmp_path),
    partitioner=Partitioner(settings),
    state=jnp.float32(0),
    step=first,
    train_input=inp,
    eval_runner=eval_runner.EvalRunner(
      before_batch=lambda count: None, **sinks
    ),
    checkpointer=Recorder(),
    preemption=StopAt(stop_at),
    goodput=summaries.goodput.Recorder(None),
    **{
      'train_program': programs.SingleTaskTrainProgram(),
      'early_stopping': early_stopping.NoopEarlyStopping(),
    }
    | parts,
    **sinks,
  )


def test_saves_the_state_that_enters_each_step_with_its_input(tmp_path):
  run = _run(tmp_path)
  assert train_program.train(run) is Outcome.DONE
  sums = [0, 1, 3, 6, 10]
  assert run.checkpointer.saves == [
    *((step, sums[step], step, False) for step in range(5)),
    (4, 10, 4, True),
  ]


def test_reports_the_loss_of_a_step_under_its_number(tmp_path):
  run = _run(tmp_path, num_train_steps=5)
  train_program.train(run)
  assert run.writer.steps == [('train', 0, 1), ('train', 2, 3), ('train', 4, 5)]
  assert run.progress.shown == [(1, 1.0), (5, 5.0)]


class AwaitedBatches(StopAt):
  """Releases a batch ten seconds after the loop begins to wait for it."""

  def __init__(self):
    super().__init__()
    self.now, self.is_released = 0.0, False
    self._released = threading.Semaphore(0)

  def raise_if_wait_ends(self):
    if not self.is_released:
      self.now, self.is_released = self.now + 10, True
      self._released.release()

  def config(self):
    released = self._released

    class Awaited(Counting):
      def get_next(self):
        released.acquire()
        return super().get_next()

    return Awaited.config(batch_size=1, is_training=True)


def test_waits_for_batches_are_in_the_ledger_and_in_the_progress(tmp_path):
  batches = AwaitedBatches()

  class FiveSeconds(programs.SingleTaskTrainProgram):
    def update_state(self, state, step):
      batches.now, batches.is_released = batches.now + 5, False
      return super().update_state(state, step)

  recorder = summaries.goodput.Recorder(None, lambda: batches.now)
  run = dataclasses.replace(
    _run(tmp_path, train_program=FiveSeconds()),
    train_input=batches.config().Instantiate(),
    preemption=batches,
    goodput=recorder,
  )
  assert train_program.train(run) is Outcome.DONE
  seconds = recorder._record()['seconds']
  assert seconds['input wait'] == 4 * 10
  assert seconds['step'] == 4 * 5
  assert run.progress.input_waits == [10 / 15] * 2


def test_a_save_that_waits_for_steps_is_time_of_steps(tmp_path, monkeypatch):
  clock = types.SimpleNamespace(now=0.0)

  def start(reader, loss, output):
    @functools.cache
    def finish():
      clock.now += 5
      return step_status.StepStatus(is_finite=True, is_skipped=False)

    return finish

  class TwoSeconds(Recorder):
    def is_due(self, step, *, force=False):
      return True

    def save(self, *args, **kwargs):
      clock.now += 2
      return super().save(*args, **kwargs)

  monkeypatch.setattr(step_status.StatusReader, 'start', start)
  recorder = summaries.goodput.Recorder(None, lambda: clock.now)
  run = dataclasses.replace(
    _run(tmp_path), checkpointer=TwoSeconds(), goodput=recorder
  )
  assert train_program.train(run) is Outcome.DONE
  seconds = recorder._record()['seconds']
  # Before each of 4 steps, and twice after the last.
  assert (seconds['step'], seconds['checkpoint']) == (4 * 5, 6 * 2)
  assert clock.now == 4 * 5 + 6 * 2


def test_batches_move_to_the_devices_while_a_step_runs(tmp_path):
  placed = [threading.Event() for _ in range(8)]
  run = _run(tmp_path)
  put_batch = run.partitioner.put_batch

  def put(batch):
    placed[int(batch.x[0])].set()
    assert threading.current_thread() is not threading.main_thread()
    return put_batch(batch)

  run.partitioner.put_batch = put

  class Waiting(programs.SingleTaskTrainProgram):
    def update_state(self, state, step):
      # The batch of step 0 is 1.
      assert placed[step + 2].wait(60), f'not placed during step {step}'
      return super().update_state(state, step)

  run = dataclasses.replace(run, train_program=Waiting())
  assert train_program.train(run) is Outcome.DONE


def test_a_trace_that_cannot_be_read_does_not_end_the_run(
  tmp_path, monkeypatch, caplog
):
  def fail(path):
    raise RuntimeError('Failed to parse XSpace')

  monkeypatch.setattr(jax.profiler.ProfileData, 'from_file', fail)
  monkeypatch.setattr(jax.profiler, 'start_trace', lambda folder: None)
  trace = tmp_path / f'plugins/profile/now/{socket.gethostname()}.xplane.pb'
  trace.parent.mkdir(parents=True)
  monkeypatch.setattr(jax.profiler, 'stop_trace', trace.touch)
  run = _run(tmp_path, profiler_capture_step=1, profiler_num_steps=1)
  assert train_program.train(run) is Outcome.DONE
  assert 'cannot be summarized: Failed to parse XSpace' in caplog.text


def test_stops_before_the_step_and_saves(tmp_path):
  run = _run(tmp_path, stop_at=3)
  assert train_program.train(run) is Outcome.PREEMPTED
  assert run.checkpointer.saves[-1] == (3, 6, 3, True)


def test_goes_on_from_where_it_stands(tmp_path):
  run = _run(tmp_path, first=2)
  assert train_program.train(run) is Outcome.DONE
  assert run.checkpointer.saves[-1] == (4, 3 + 4, 4, True)


def test_nothing_is_left_to_do(tmp_path):
  run = _run(tmp_path, first=4)
  assert train_program.train(run) is Outcome.DONE
  assert run.writer.steps == []
  said = 'step 4: none of 4 steps is left; to go on, increase'
  assert run.progress.printed[0].startswith(said)
  run = _run(tmp_path / 'more', first=3)
  assert train_program.train(run) is Outcome.DONE
  assert not any('to go on' in text for text in run.progress.printed)


def test_ends_where_the_data_end(tmp_path):
  run = _run(tmp_path, num_batches=2)
  assert train_program.train(run) is Outcome.OUT_OF_DATA
  assert run.checkpointer.saves[-1] == (2, 3, 2, True)
  # Jobs that follow the checkpoints learn that this is the last.
  assert io_utils.training_end(tmp_path) == 2


def test_stops_early_where_the_task_says_so(tmp_path):
  asked = []

  def stops(metrics, mode, step, is_last, checkpoints):
    asked.append((step, is_last, metrics['num_params']))
    assert checkpoints == f'{tmp_path}/checkpoints'
    return step == 3

  run = _run(
    tmp_path,
    early_stopping=early_stopping.FunctionEarlyStopping(stops, str(tmp_path)),
  )
  assert train_program.train(run) is Outcome.STOPPED_EARLY
  assert asked == [(1, False, 0), (2, False, 0), (3, False, 0)]
  assert run.checkpointer.saves[-1] == (3, 6, 3, True)
  assert io_utils.training_end(tmp_path) == 3


def test_a_custom_program_trains(tmp_path):
  class Twice(programs.SingleTaskTrainProgram):
    """Adds 100 before each step, and ends at 3."""

    def should_run(self, state, step):
      return step < 3

    def update_state(self, state, step):
      return state + 100

    def train_step(self, step, state, prng_key, inputs, static_args):
      return super().train_step(step, state, prng_key, inputs, static_args)

    def shutdown(self):
      ended.append(True)

  ended = []
  run = _run(tmp_path, train_program=Twice())
  assert train_program.train(run) is Outcome.DONE
  assert run.checkpointer.saves[-1] == (3, 306, 3, True)
  assert ended == [True]
  assert io_utils.training_end(tmp_path) is None


def _run_with_means(tmp_path):
  """Returns a run whose second summary is the mean over four steps."""
  return _run(
    tmp_path,
    num_train_steps=5,
    summary_interval_steps=4,
    summary_accumulate_interval_steps=1,
  )


def test_summaries_may_be_means_over_steps(tmp_path):
  run = _run_with_means(tmp_path)
  train_program.train(run)
  # Step 0 alone, then the mean of batches 2 to 5.
  assert run.writer.steps == [('train', 0, 1), ('train', 4, 3.5)]


def test_means_over_steps_have_the_tags_of_single_steps(tmp_path):
  run = _run_with_means(tmp_path)
  # Names metrics of evaluation and decoding only.
  run.task.decode.metrics_prefix = 'Decoded/'
  train_program.train(run)
  tags = ['Metrics/batch', 'Metrics/batch-weight']
  assert run.writer.metrics == [tags, tags]


class Saver(Recorder):
  """Saves every step."""

  def is_due(self, step, *, force=False):
    return True


@pytest.mark.parametrize('stop_at', [2, 3, 4])
def test_means_over_steps_include_those_before_a_restart(tmp_path, stop_at):
  def run(first, stop_at=None):
    run = _run(
      tmp_path,
      first=first,
      stop_at=stop_at,
      num_train_steps=9,
      summary_interval_steps=4,
      summary_accumulate_interval_steps=1,
    )
    run = dataclasses.replace(run, checkpointer=Saver())
    train_program.train(run)
    return run.writer.steps

  steps = run(0, stop_at) + run(stop_at)
  # Step 0 alone, then the means of batches 2 to 5 and 6 to 9.
  assert steps == [('train', 0, 1), ('train', 4, 3.5), ('train', 8, 7.5)]
  # A step that was saved by an earlier run starts with its own sums.
  assert run(2) == steps[1:]


def test_damaged_sums_are_set_aside(tmp_path, caplog):
  (tmp_path / 'summary_sums.json').write_text('{"2": {"loss": 3}}')
  run = _run(tmp_path, first=2, summary_accumulate_interval_steps=1)
  train_program.train(run)
  assert (tmp_path / 'summary_sums.json.damaged').exists()


def test_an_error_in_the_data_reaches_the_caller(tmp_path):
  run = _run(tmp_path)

  def broken():
    raise OSError('gone')

  run.train_input.get_next = broken
  with pytest.raises(OSError, match='gone'):
    train_program.train(run)


class FailingEvals:
  evals = ['held_out']
  decodes = ()

  def evaluate(self, state, step):
    raise ValueError('no such metric')


class FullDisk(Recorder):
  def wait(self):
    raise OSError('no space left')


@pytest.mark.parametrize('num_processes', [1, 2])
def test_a_failed_evaluation_loses_no_steps(
  tmp_path, monkeypatch, caplog, num_processes
):
  monkeypatch.setattr(
    program, 'get_eval_train_state', lambda task, state, use_ema: state
  )
  run = _run(tmp_path, eval_interval_steps=3)
  run = dataclasses.replace(
    run, eval_runner=FailingEvals(), checkpointer=FullDisk()
  )
  monkeypatch.setattr(jax, 'process_count', lambda: num_processes)
  with pytest.raises(ValueError, match='no such metric'):
    train_program.train(run)
  is_saved = num_processes == 1
  assert (run.checkpointer.saves[-1] == (3, 6, 3, True)) == is_saved
  assert ('The state of step 3 cannot be saved' in caplog.text) == is_saved


def test_the_first_result_is_announced_once(tmp_path):
  run = _run(tmp_path, first=2)
  results = []
  run.train_program.register_first_result_callback_fn(results.append)
  train_program.train(run)
  assert results == [True]


def test_the_first_step_is_shown_when_it_is_done(tmp_path, monkeypatch):
  events = []

  class Recording(programs.SingleTaskTrainProgram):
    def run(self, state, step):
      events.append(f'run {step}')
      return super().run(state, step)

  run = _run(tmp_path, first=1, train_program=Recording())
  run = dataclasses.replace(
    run, after_first_step=lambda: events.append('started')
  )
  monkeypatch.setattr(
    run.progress, 'update', lambda step, *_, **__: events.append(f'done {step}')
  )
  train_program.train(run)
  assert events[:4] == ['run 1', 'done 2', 'started', 'run 2']


def test_outputs_of_a_run_without_step_output_are_reported(tmp_path):
  class Own(programs.SingleTaskTrainProgram):
    def run(self, state, step):
      batch = self._train_input.get_next_padded()
      assert isinstance(batch.x, np.ndarray)
      return programs.TrainProgramOutput(
        state + batch.x[0],
        jnp.float32(step),
        {'metric': (2.0, 1.0)},
        step + 1,
        None,
        None,
      )

  run = _run(tmp_path, train_program=Own())
  assert train_program.train(run) is Outcome.DONE
  assert run.writer.steps == [('train', 0, 0), ('train', 2, 2)]
  assert run.checkpointer.saves[-1] == (4, 10, 4, True)


def test_a_program_without_a_loss_is_reported(tmp_path):
  class Own(programs.SingleTaskTrainProgram):
    def run(self, state, step):
      batch = self._train_input.get_next_padded()
      return programs.TrainProgramOutput(
        state + batch.x[0], None, {'metric': (2.0, 1.0)}, step + 1
      )

  run = _run(tmp_path, train_program=Own())
  assert train_program.train(run) is Outcome.DONE
  assert run.writer.steps == [('train', 0, None), ('train', 2, None)]
  assert run.checkpointer.saves[-1] == (4, 10, 4, True)


def test_a_program_outside_of_a_loop_of_pax_writes_its_summaries(tmp_path):
  run = _run(tmp_path)
  program = run.train_program
  key = jax.random.key(0)
  program.setup(
    run.task, run.train_input, run.partitioner, tmp_path, key, key, 0
  )
  state = run.state
  for step in range(4):
    state = program.run(state, step).state
  program.shutdown()
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  records = [json.loads(line) for line in lines]
  assert [(r['step'], r['loss']) for r in records] == [(0, 1.0), (2, 3.0)]
  assert program.train_unpadded_global_batch_size == 1
