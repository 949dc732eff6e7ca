# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
"""A sweep over experiments in processes, and its table."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pax.aot import sweep
from pax.runner.options import RunOptions

EXP = 'tests.integration.experiments.TinySpmd'


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  """Options and exit code of a sweep; the second experiment does not exist."""
  folder = tmp_path_factory.mktemp('all')
  options = RunOptions(
    mode='aot', all=True, aot_jobs=2, check_level=6, job_log_dir=str(folder)
  )
  return options, sweep.run(options, [EXP, f'{EXP}OfNobody'])


def test_reports_and_table(swept):
  options, code = swept
  folder = sweep.report_folder(options)
  assert code == 1
  report = json.loads((folder / 'TinySpmd-v4-8.json').read_text())
  assert report['experiment'] == EXP and report['num_params'] == 160
  table = (folder / sweep.TABLE).read_text()
  assert '2 experiments, 0 of them compiled' in table
  assert '| TinySpmd | v4-8 | 1.6e-07B |' in table and 'state shapes' in table
  assert f'{EXP}OfNobody: no experiment is called' in table


def test_it_goes_on_with_what_is_left(swept, monkeypatch, capsys):
  options, _ = swept

  def start(*unused, **unused_too):
    raise AssertionError('computed again')

  monkeypatch.setattr(sweep.subprocess, 'run', start)
  assert sweep.run(options, [EXP]) == sweep.EXIT_FITS
  assert 'experiment TinySpmd, machine v4-8' in capsys.readouterr().out


def test_what_was_asked_for_by_the_end_of_its_name_is_known(swept, tmp_path):
  options, _ = swept
  (file,) = sweep.report_folder(options).glob('TinySpmd*.json')
  report = json.loads(file.read_text()) | {'experiment': 'experiments.TinySpmd'}
  (tmp_path / file.name).write_text(json.dumps(report))
  assert sweep._load_report(tmp_path, EXP, options).name == EXP
  other = EXP.replace('experiments', 'twins')
  assert sweep._load_report(tmp_path, other, options) is None


def test_the_table_is_written_where_it_is_wanted(swept, tmp_path):
  options, _ = swept
  wanted = tmp_path / 'docs.md'
  sweep.run(dataclasses.replace(options, aot_table=str(wanted)), [EXP])
  assert '| TinySpmd | v4-8 |' in wanted.read_text()


def test_what_could_not_be_compiled_is_tried_where_it_can(monkeypatch):
  report = {'level': 10, 'not_compiled': 'no compiler', 'topology': '8xh100'}
  options = RunOptions(check_level=10)
  reasons = iter(('no compiler', None))
  monkeypatch.setattr(
    sweep.topology.Topology, 'missing_compiler', lambda self: next(reasons)
  )
  assert sweep._is_complete(report, options)
  assert not sweep._is_complete(report, options)
  assert sweep._is_complete(report, RunOptions(check_level=7))


@pytest.mark.parametrize(
  ('stored', 'asked'),
  [
    # Of `--exp --topology` in the same directory.
    ({'asked_topology': '8xh100'}, {}),
    ({'settings': ['NUM_LAYERS=1']}, {}),
    ({}, {'set': ('NUM_LAYERS=1',)}),
    ({'compile_s': 2.0, 'full_effort': False}, {'aot_full_effort': True}),
    ({'remat_policies': None}, {'aot_remat': True}),
  ],
)
def test_reports_of_other_options_are_not_reused(stored, asked):
  report = {'level': 10, 'not_compiled': None, 'topology': '8xh100'}
  assert sweep._is_complete(report, RunOptions(check_level=10))
  options = RunOptions(check_level=10, **asked)
  assert not sweep._is_complete(report | stored, options)


def test_what_does_not_fit_is_in_the_exit_code(swept, monkeypatch):
  options, _ = swept
  (file,) = sweep.report_folder(options).glob('TinySpmd*.json')
  report = json.loads(file.read_text())
  monkeypatch.setattr(
    sweep,
    '_load_report',
    lambda folder, name, options: sweep.table.Outcome(
      name=name, report=report | {'fits': False}
    ),
  )
  assert sweep.run(options, [EXP]) == sweep.EXIT_DOES_NOT_FIT
  assert (
    'does not fit: 0 %'
    in (sweep.report_folder(options) / sweep.TABLE).read_text()
  )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'exp': EXP}, '--all and --exp exclude each other'),
    ({'topology': 'v4-8'}, 'the default machine of each experiment'),
    ({'job_log_dir': None}, 'needs --job_log_dir'),
    ({'aot_save': 'x'}, 'needs --exp, not --all'),
    ({'aot_jobs': 0}, '--aot_jobs must be an integer at least 1'),
  ],
)
def test_options_that_are_not_for_all(changes, message):
  fields = {'mode': 'aot', 'all': True, 'job_log_dir': 'unused'} | changes
  with pytest.raises(ValueError, match=message):
    sweep.run(RunOptions(**fields), [])
