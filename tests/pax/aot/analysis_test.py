# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
"""Analyses of a tiny experiment on four simulated devices."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest

from pax.aot import analysis, cli, compilation, target
from pax.aot.report import html_report, memory, text
from pax.partitioning import memory as memory_lib
from pax.runner.options import RunOptions
from pax.summaries import chips
from pax.tools import abstract_experiment

EXP = 'tests.integration.experiments.TinySpmd'
MESH = ('ICI_MESH_SHAPE=[1,2,2]',)
# Variables of tests/pax/tiny.py: w 8x16 and its bias, w 16x1, a counter.
PARAMS = 8 * 16 + 16 + 16


def make(topology='cpu:4', *settings):
  options = abstract_experiment.ExperimentOptions(
    exp=EXP, set=(*MESH, *settings)
  )
  return target.create_target(options, topology)


@pytest.fixture(scope='module', autouse=True)
def devices():
  """The eight devices of all tests, counted before a test asks for fewer."""
  return jax.devices()


@pytest.fixture(scope='module')
def analyzed(devices):
  return analysis.analyze(make())


@pytest.fixture(scope='module')
def report(analyzed):
  return analyzed.report


def test_sizes_by_hand(report):
  assert report.num_params == PARAMS and report.num_devices == 4
  assert report.mesh == {'replica': 1, 'data': 2, 'mdl': 2}
  (first,) = (a for a in report.arrays if a.path.endswith('first/linear/w'))
  assert (first.shape, first.sharding, first.num_shards) == (
    (8, 16), 'data, mdl', 4,
  )  # fmt: skip
  assert first.num_bytes == 8 * 16 * 4 / 4
  assert report.memory.batch == 4 * (8 * 8 + 8 + 8) / 2
  assert not first.is_large_and_replicated


def test_memory_is_what_xla_says(analyzed):
  xla = analyzed.compiled_step.memory_analysis
  step = analyzed.report.memory
  arguments = (
    step.parameters + step.other_variables + step.optimizer + step.batch
  )
  assert arguments == pytest.approx(xla.argument_size_in_bytes, abs=16)
  assert step.activations + step.temporaries == xla.temp_size_in_bytes
  assert analyzed.report.fits is None


def test_products_by_hand(report):
  # Two matmuls forward; backward all but the gradient of the batch.
  forward = 2 * 8 * (8 * 16 + 16 * 1)
  assert report.flops.matmuls == 2 * forward + 2 * 8 * 16
  assert report.flops.xla_ratio > 0.5


def test_the_model_needs_at_most_the_matmuls_of_the_step(monkeypatch):
  # The formula counts gradients that the step may not compute.
  monkeypatch.setattr(
    analysis.mfu,
    'model_flops',
    lambda *args, **kwargs: analysis.mfu.ModelFlops(
      num_params=1,
      num_active_params=1,
      flops_per_token=1e12,
      flops_per_step=1e12,
    ),
  )
  flops = analysis.analyze(make(), analysis.TRACED).report.flops
  assert flops.model == flops.matmuls < 1e12


def test_collectives_are_along_the_axes_that_split(report):
  axes = {sent.axes for sent in report.collectives}
  assert ('mdl',) in axes or ('data', 'mdl') in axes
  assert all(
    sent.dcn_bytes == 0 < sent.ici_bytes for sent in report.collectives
  )


def test_the_report_says_all_of_it(report):
  shown = text.render_text(report)
  assert f'{EXP} on cpu:4' in shown and 'mesh' in shown
  assert 'first/linear/w' in shown and 'bytes sent per device' in shown
  data = json.loads(report.to_json())
  assert data['memory']['total'] == report.memory.total
  html = html_report.render_html(report)
  assert html.count('<table>') == 4 and 'first/linear/w' in html
  assert 'http' not in html


def test_what_does_not_fit_is_said_with_what_would_help(report):
  tight = dataclasses.replace(report.memory, capacity=100.0)
  assert tight.fits is False
  failed = dataclasses.replace(
    report, memory=tight, fits=False, advice=['GiB: fewer rows']
  )
  shown = text.render_text(failed)
  assert 'DOES NOT FIT' in shown and 'fewer rows' in shown
  assert 'class="bad"' in html_report.render_html(failed)


def test_a_machine_whose_compiler_is_missing_still_gets_an_answer():
  report = analysis.analyze(make('8xv100', 'ICI_MESH_SHAPE=[2,2,2]')).report
  assert 'compiling for v100 is not supported' in report.not_compiled
  assert report.roofline.mfu > 0 and report.collectives is None
  assert 'not compiled' in text.render_text(report)


def test_a_chip_too_small_is_seen_without_compiling(monkeypatch):
  small = dataclasses.replace(chips.find('H100'), hbm_bytes=500.0)
  monkeypatch.setattr(chips, 'CHIPS', (small,))
  report = analysis.analyze(make('4xh100'), analysis.TRACED).report
  assert report.fits is False and report.advice and report.buffers
  assert report.memory.total > 500


def test_levels():
  made = make()
  report = analysis.analyze(made, analysis.MESH).report
  assert report.flops is None and report.compile_s is None
  exact = memory_lib.state_bytes_per_device(made.partitioner.state_metadata)
  step = 4
  assert report.memory.total - report.memory.batch == exact - step


def test_files_and_exit_code(tmp_path, capsys):
  options = RunOptions(
    exp=EXP, set=MESH, mode='aot', topology='cpu:4', check_level=7,
    job_log_dir=str(tmp_path),
  )  # fmt: skip
  assert cli.run(options) == cli.EXIT_FITS
  assert 'TinySpmd on cpu:4' in capsys.readouterr().out
  names = {path.name for path in (tmp_path / 'aot').iterdir()}
  assert names == {f'TinySpmd-cpu:4.{e}' for e in ('txt', 'json', 'html')}
  with pytest.raises(ValueError, match='there is no compiled step to save'):
    cli.run(dataclasses.replace(options, aot_save='x'))
  with pytest.raises(ValueError, match='--check_level=3'):
    cli.run(dataclasses.replace(options, check_level=3))


@pytest.mark.parametrize(
  ('tenths_over', 'efforts'),
  [(-2, [False]), (-0.5, [False, True]), (0.5, [False, True]), (2, [False])],
)
def test_what_nearly_fits_is_compiled_again(monkeypatch, tenths_over, efforts):
  made, tried = make(), []
  total = 1000.0

  def compile_step(made, traced, trace, *, full_effort):
    tried.append(full_effort)
    capacity = total / (1 + tenths_over / 10)
    step = memory.Memory(
      parameters=total, other_variables=0.0, optimizer=0.0, batch=0.0,
      capacity=capacity,
    )  # fmt: skip
    # With full effort loops are unrolled, and XLA counts every iteration.
    ratio = 2.0 if full_effort else 1.0
    compiled = dataclasses.replace(
      traced,
      memory=step,
      fits=step.fits,
      compile_s=3.0,
      flops=dataclasses.replace(traced.flops, xla_ratio=ratio),
    )
    return analysis.Analysis(compiled, None)

  monkeypatch.setattr(analysis, '_compile', compile_step)
  report = analysis.analyze(made).report
  assert tried == efforts and report.compile_s == 3.0 * len(efforts)
  assert report.flops.xla_ratio == 1.0


def test_what_the_compiler_refuses_is_counted_once(monkeypatch):
  def reject(step, full_effort):
    raise compilation.DoesNotFitError(
      'RESOURCE_EXHAUSTED: the total memory required for HLO temporaries'
      ' (40.00G) exceeds available HBM (30.75G).'
    )

  monkeypatch.setattr(compilation, 'compile_step', reject)
  report = analysis.analyze(make()).report
  assert report.fits is False and report.advice and report.buffers
  assert report.memory.total == 40 * 2**30
  assert report.memory.capacity == 30.75 * 2**30
  assert not report.full_effort
  assert analysis.analyze(make(), full_effort=True).report.full_effort


def with_another_step(made, monkeypatch):
  """Gives the program of a target an evaluation besides its update."""
  step = made.partitioner.eval_step()

  class Program:
    def steps_besides_update(self, partitioner, train_input_p):
      assert partitioner is made.partitioner
      assert train_input_p.cls.get_batch_size(train_input_p)
      return {'sampling': step}

  monkeypatch.setattr(
    made.experiment.experiment, 'train_programs', lambda: [Program()]
  )
  return step


def test_other_steps_of_the_program_are_compiled(monkeypatch):
  made = make()
  step = with_another_step(made, monkeypatch)
  report = analysis.analyze(made).report
  memory = report.memory_besides_update['sampling']
  xla = step.compiled.memory_analysis()
  # The state of training stays where it is.
  assert memory.optimizer == report.memory.optimizer > 0
  assert memory.temporaries == xla.temp_size_in_bytes
  assert 'memory per device, sampling' in text.render_text(report)
  assert 'per device, sampling' in html_report.render_html(report)
  data = json.loads(report.to_json())
  total = data['memory_besides_update']['sampling']['total']
  assert total == memory.total


def test_a_job_fits_if_all_of_its_steps_do(monkeypatch):
  made = make()
  step = with_another_step(made, monkeypatch)
  compile_step = compilation.compile_step

  def compile_or_reject(compiled, *, full_effort):
    if compiled is step:
      raise compilation.DoesNotFitError('Used 3.0G of 2.0G hbm')
    return compile_step(compiled, full_effort=full_effort)

  monkeypatch.setattr(compilation, 'compile_step', compile_or_reject)
  report = analysis.analyze(made).report
  assert report.fits is False
  assert 'DECODE_GATHERED_AXES' in report.advice[0]
