# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
"""The whole way, for a tiny experiment on four simulated devices."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest

from pax.aot import check, command, compiling, memory, page, text
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
  return check.Check(options, topology)


@pytest.fixture(scope='module', autouse=True)
def devices():
  """The eight devices of all tests, found before any other number is wished."""
  return jax.devices()


@pytest.fixture(scope='module')
def checked(devices):
  return make().run()


@pytest.fixture(scope='module')
def found(checked):
  return checked.report


def test_sizes_by_hand(found):
  assert found.num_params == PARAMS and found.num_devices == 4
  assert found.mesh == {'replica': 1, 'data': 2, 'mdl': 2}
  (first,) = (a for a in found.arrays if a.path.endswith('first/linear/w'))
  assert (first.shape, first.sharding, first.parts) == (
    (8, 16), 'data, mdl', 4,
  )  # fmt: skip
  assert first.num_bytes == 8 * 16 * 4 / 4
  assert found.memory.batch == 4 * (8 * 8 + 8 + 8) / 2
  assert not first.is_large_and_whole


def test_memory_is_what_xla_says(checked):
  analysis = checked.program.memory
  held = checked.report.memory
  arguments = (
    held.parameters + held.other_variables + held.optimizer + held.batch
  )
  assert arguments == pytest.approx(analysis.argument_size_in_bytes, abs=16)
  assert held.activations + held.temporaries == analysis.temp_size_in_bytes
  assert checked.report.fits is None


def test_products_by_hand(found):
  # Two products forward, and backward all but the gradient of the batch.
  forward = 2 * 8 * (8 * 16 + 16 * 1)
  assert found.flops.products == 2 * forward + 2 * 8 * 16
  assert found.flops.repeated > 0.5


def test_experts_that_do_not_run_are_not_of_the_model(monkeypatch):
  # Which the formula counts all.
  monkeypatch.setattr(
    check.mfu,
    'model_flops',
    lambda *unused, **too: check.mfu.ModelFlops(
      num_params=1, flops_per_token=1e12, flops_per_step=1e12
    ),
  )
  told = make().run(check.TRACED).report.flops
  assert told.model == told.products < 1e12


def test_collectives_are_along_the_axes_that_split(found):
  axes = {sent.axes for sent in found.collectives}
  assert ('mdl',) in axes or ('data', 'mdl') in axes
  assert all(sent.dcn_bytes == 0 < sent.ici_bytes for sent in found.collectives)


def test_the_report_says_all_of_it(found):
  shown = text.render(found)
  assert f'{EXP} on cpu:4' in shown and 'mesh' in shown
  assert 'first/linear/w' in shown and 'sent by each device' in shown
  data = json.loads(found.as_json())
  assert data['memory']['total'] == found.memory.total
  html = page.render(found)
  assert html.count('<table>') == 4 and 'first/linear/w' in html
  assert 'http' not in html


def test_what_does_not_fit_is_said_with_what_would_help(found):
  tight = dataclasses.replace(found.memory, capacity=100.0)
  assert tight.fits is False
  failed = dataclasses.replace(
    found, memory=tight, fits=False, advice=['GiB: fewer rows']
  )
  shown = text.render(failed)
  assert 'DOES NOT FIT' in shown and 'fewer rows' in shown
  assert 'class="bad"' in page.render(failed)


def test_a_machine_whose_compiler_is_missing_still_gets_an_answer():
  made = make('8xv100', 'ICI_MESH_SHAPE=[2,2,2]')
  found = made.run().report
  assert 'not what v100 is' in found.not_compiled
  assert found.roofline.mfu > 0 and found.collectives is None
  assert 'not compiled' in text.render(found)


def test_a_chip_too_small_is_seen_without_compiling(monkeypatch):
  small = dataclasses.replace(chips.find('H100'), hbm_bytes=500.0)
  monkeypatch.setattr(chips, 'find', lambda kind: small)
  found = make('4xh100').run(check.TRACED).report
  assert found.fits is False and found.advice and found.buffers
  assert found.memory.total > 500


def test_levels():
  made = make()
  found = made.run(check.MESH).report
  assert found.flops is None and found.compile_s is None
  exact = memory_lib.state_bytes_per_device(made.partitioner.state_metadata)
  step = 4
  assert found.memory.total - found.memory.batch == exact - step


def test_files_and_exit_code(tmp_path, capsys):
  options = RunOptions(
    exp=EXP, set=MESH, mode='aot', topology='cpu:4', check_level=7,
    job_log_dir=str(tmp_path),
  )  # fmt: skip
  assert command.run(options) == command.EXIT_FITS
  assert 'TinySpmd on cpu:4' in capsys.readouterr().out
  names = {path.name for path in (tmp_path / 'aot').iterdir()}
  assert names == {f'TinySpmd-cpu:4.{e}' for e in ('txt', 'json', 'html')}
  with pytest.raises(ValueError, match='there is no compiled step to save'):
    command.run(dataclasses.replace(options, aot_save='x'))
  with pytest.raises(ValueError, match='--check_level=3'):
    command.run(dataclasses.replace(options, check_level=3))


@pytest.mark.parametrize(
  ('tenths_over', 'efforts'),
  [(-2, [True]), (-0.5, [True, False]), (0.5, [True, False]), (2, [True])],
)
def test_what_nearly_fits_is_compiled_again(monkeypatch, tenths_over, efforts):
  made, tried = make(), []
  total = 1000.0

  def compiled(traced, quickly):
    tried.append(quickly)
    capacity = total / (1 + tenths_over / 10)
    held = memory.Memory(
      parameters=total, other_variables=0.0, optimizer=0.0, batch=0.0,
      capacity=capacity,
    )  # fmt: skip
    # Tried hard it has loops that are unrolled, and seem to be repeated.
    flops = dataclasses.replace(traced.flops, repeated=1.0 if quickly else 2.0)
    told = dataclasses.replace(
      traced, memory=held, fits=held.fits, compile_s=3.0, flops=flops
    )
    return check.Checked(told, None)

  monkeypatch.setattr(made, '_compiled', compiled)
  found = made.run().report
  assert tried == efforts and found.compile_s == 3.0 * len(efforts)
  assert found.flops.repeated == 1.0


def test_what_the_compiler_refuses_is_counted_once(monkeypatch):
  def refuse(step, quickly):
    raise compiling.DoesNotFitError(
      'RESOURCE_EXHAUSTED: the total memory required for HLO temporaries'
      ' (40.00G) exceeds available HBM (30.75G).'
    )

  monkeypatch.setattr(compiling, 'compile_step', refuse)
  found = make().run().report
  assert found.fits is False and found.advice and found.buffers
  assert found.memory.total == 40 * 2**30
  assert found.memory.capacity == 30.75 * 2**30
