# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
"""Several experiments, each in a process, and the table of them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pax.aot import every
from pax.runner.options import RunOptions

EXP = 'tests.integration.experiments.TinySpmd'


@pytest.fixture(scope='module')
def told(tmp_path_factory):
  """Options and exit code of a run over two experiments, one of them not."""
  folder = tmp_path_factory.mktemp('all')
  options = RunOptions(
    mode='aot', all=True, aot_jobs=2, check_level=6, job_log_dir=str(folder)
  )
  return options, every.run(options, [EXP, f'{EXP}OfNobody'])


def test_reports_and_table(told):
  options, code = told
  folder = every.folder_of(options)
  assert code == 1
  report = json.loads((folder / 'TinySpmd-v4-8.json').read_text())
  assert report['experiment'] == EXP and report['num_params'] == 160
  table = (folder / every.TABLE).read_text()
  assert '2 experiments, 0 of them compiled' in table
  assert '| TinySpmd | v4-8 | 1.6e-07B |' in table and 'shapes alone' in table
  assert f'{EXP}OfNobody: no experiment is called' in table


def test_it_goes_on_with_what_is_left(told, monkeypatch, capsys):
  options, _ = told

  def start(*unused, **unused_too):
    raise AssertionError('computed again')

  monkeypatch.setattr(every.subprocess, 'run', start)
  assert every.run(options, [EXP]) == every.EXIT_FITS
  assert 'experiment TinySpmd, machine v4-8' in capsys.readouterr().out


def test_what_was_asked_for_by_the_end_of_its_name_is_known(told, tmp_path):
  options, _ = told
  (file,) = every.folder_of(options).glob('TinySpmd*.json')
  report = json.loads(file.read_text()) | {'experiment': 'experiments.TinySpmd'}
  (tmp_path / file.name).write_text(json.dumps(report))
  assert every._known(tmp_path, EXP, options).name == EXP
  other = EXP.replace('experiments', 'twins')
  assert every._known(tmp_path, other, options) is None


def test_the_table_is_written_where_it_is_wanted(told, tmp_path):
  options, _ = told
  wanted = tmp_path / 'docs.md'
  every.run(dataclasses.replace(options, aot_table=str(wanted)), [EXP])
  assert '| TinySpmd | v4-8 |' in wanted.read_text()


def test_what_could_not_be_compiled_is_tried_where_it_can(monkeypatch):
  report = {'level': 10, 'not_compiled': 'no compiler', 'topology': '8xh100'}
  options = RunOptions(check_level=10)
  reasons = iter(('no compiler', None))
  monkeypatch.setattr(
    every.topology.Topology, 'missing_compiler', lambda self: next(reasons)
  )
  assert every._is_enough(report, options)
  assert not every._is_enough(report, options)
  assert every._is_enough(report, RunOptions(check_level=7))


def test_what_does_not_fit_is_in_the_exit_code(told, monkeypatch):
  options, _ = told
  (file,) = every.folder_of(options).glob('TinySpmd*.json')
  report = json.loads(file.read_text())
  monkeypatch.setattr(
    every,
    '_known',
    lambda folder, name, options: every.table.Outcome(
      name=name, report=report | {'fits': False}
    ),
  )
  assert every.run(options, [EXP]) == every.EXIT_DOES_NOT_FIT
  assert (
    'does not fit: 0 %' in (every.folder_of(options) / every.TABLE).read_text()
  )


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'exp': EXP}, '--all is instead of --exp'),
    ({'topology': 'v4-8'}, 'the machine of each experiment'),
    ({'job_log_dir': None}, 'wants a --job_log_dir'),
    ({'aot_save': 'x'}, 'for one --exp'),
    ({'aot_jobs': 0}, 'is 1 at least'),
  ],
)
def test_options_that_are_not_for_all(changes, says):
  given = {'mode': 'aot', 'all': True, 'job_log_dir': 'unused'} | changes
  with pytest.raises(ValueError, match=says):
    every.run(RunOptions(**given), [])
