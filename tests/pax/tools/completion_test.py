# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax:main_lib,//pax/tasks:experiments,//pax/contrib:experiments
# bazel: deps=//pax/tools:abstract_experiment,//pax/tools/launching:job
"""Completion: what it offers, and what shells make of it."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from pax import experiment_registry, main
from pax.runner import command_line
from pax.tools import catalog
from pax.tools.completing import candidates, scripts, tool_flags


def words(line):
  return [word for word, _ in candidates.candidates(line)]


@pytest.fixture(scope='module')
def shell_env(tmp_path_factory):
  """An environment in which `pax` is this code."""
  folder = tmp_path_factory.mktemp('bin')
  program = folder / 'pax'
  path = os.pathsep.join(filter(None, sys.path))
  program.write_text(
    f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {sys.executable}'
    ' -m pax.main "$@"\n'
  )
  program.chmod(0o755)
  return os.environ | {
    'PATH': f'{folder}:{os.environ["PATH"]}',
    'HOME': str(folder),
    'TERM': 'dumb',
  }


def _shell(shell, script, env):
  if shutil.which(shell) is None:
    pytest.skip(f'{shell} is not installed')
  ended = subprocess.run(
    [shell, *(['-f'] if shell == 'zsh' else []), '-c', script],
    env=env,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert ended.returncode == 0, ended.stderr
  return ended.stdout.splitlines()


def test_the_names_in_the_sources_are_the_registered_ones():
  experiment_registry.import_all_experiments()
  packages = ('pax.tasks.', 'pax.contrib.')
  registered = [
    name for name in experiment_registry.get_all() if name.startswith(packages)
  ]
  assert sorted(experiment_registry.find_names()) == sorted(registered)


@pytest.mark.parametrize('tool', catalog.TOOLS)
def test_the_flags_in_the_sources_are_those_of_the_tool(tool):
  module = {'launch': 'launching.job'}.get(tool, tool)
  members = vars(importlib.import_module(f'pax.tools.{module}')).values()
  (options,) = (
    cls
    for cls in members
    if isinstance(cls, type)
    and dataclasses.is_dataclass(cls)
    and command_line.flag_fields(cls)
    and cls.__module__ == f'pax.tools.{module}'
  )
  assert tool_flags.of_tool(tool) == tool_flags.of_options(options)


def test_a_word_that_is_no_flag():
  assert set(words('pax ')) == {*catalog.TOOLS, 'tune'}
  assert words('A=1 /usr/bin/pax mod') == ['model_analysis']
  assert words('paxrun completion ') == ['bash', 'zsh', 'fish']
  assert words('pax convert p') == ['pax-to-hf']
  assert words('pax convert pax-to-hf ') == []
  assert words('pax plot ') == []


def test_flags_and_their_values():
  assert words('pax --job_l') == ['--job_log_dir=']
  assert words('pax --trac') == ['--traceback']
  assert words('pax --notrac') == ['--notraceback']
  assert words('pax tune --exp=X --sampler=c') == ['--sampler=cmaes']
  assert words('pax --mode dec') == ['decode', 'decode_once']
  assert words('pax model_analysis --usage=p') == ['--usage=params']
  assert words('pax model-analysis --trust') == ['--trust_foreign_files']
  assert words('pax launch --print=s') == ['--print=slurm', '--print=ssh']
  assert words('pax launch --hosts=2 -- --job_l') == ['--job_log_dir=']


def test_experiments_by_any_ending_that_names_one():
  assert words('pax --exp=TinyLmB') == ['--exp=TinyLmBytes']
  assert words('pax --exp quickstart.TinyLmB') == ['quickstart.TinyLmBytes']
  full = 'tasks.lm.params.lm_cloud.LmCloudSpmd2B'
  assert words(f'pax diff_configs {full}') == [full, f'{full}LimitSteps']
  for word in words('pax --exp='):
    assert experiment_registry.get(word.removeprefix('--exp='))


def test_experiments_of_the_working_directory(tmp_path, monkeypatch):
  text = '@experiment_registry.register\nclass Mine(Base):\n  pass\n'
  (tmp_path / 'my_experiments.py').write_text(text)
  monkeypatch.chdir(tmp_path)
  assert words('pax --exp=my_') == ['--exp=my_experiments.Mine']
  assert words('pax --exp=Mine') == ['--exp=Mine']
  # The class alone names either.
  (tmp_path / 'others.py').write_text(text)
  assert words('pax --exp=Mine') == []
  assert words('pax --exp=oth') == ['--exp=others.Mine']


def test_bash_completes(shell_env):
  def complete(line):
    return _shell(
      'bash',
      f'eval "$(pax completion bash)"; COMP_LINE={shlex.quote(line)};'
      'COMP_POINT=${#COMP_LINE}; read -ra COMP_WORDS <<< "$COMP_LINE";'
      '$(complete -p pax | sed "s/.*-F \\([^ ]*\\) .*/\\1/") 2>/dev/null;'
      'printf "%s\\n" ${#COMPREPLY[@]} "${COMPREPLY[@]}"',
      shell_env,
    )

  assert complete('pax list') == ['1', 'list_experiments']
  assert complete('pax --job_l') == ['1', '--job_log_dir=']
  # Readline splits words at `=`.
  assert complete('pax --exp=TinyLmB') == ['1', 'TinyLmBytes']
  assert complete('pax plot nothing')[0] == '0'


def test_zsh_completes(shell_env):
  def complete(line):
    # compadd shows what it is given.
    stub = (
      'compadd() { while [[ "$1" != -a ]]; do shift; done;'
      'print -l -- ${(P)2} };'
      'compdef() { :; }; _files() { print files }; compset() { :; };'
    )
    return _shell(
      'zsh',
      f'{stub} eval "$(pax completion zsh)"; words=({line});'
      'CURRENT=$#words; _pax_complete',
      shell_env,
    )

  assert complete('pax list') == ['list_experiments']
  assert complete('pax --job_l') == ['--job_log_dir=']
  assert complete('pax --exp=TinyLmB') == ['--exp=TinyLmBytes']
  assert complete('pax plot nothing') == ['files']


def test_fish_completes(shell_env):
  def complete(line):
    script = f'pax completion fish | source; complete -C {shlex.quote(line)}'
    return [word.split('\t')[0] for word in _shell('fish', script, shell_env)]

  assert complete('pax list') == ['list_experiments']
  assert complete('pax --job_l') == ['--job_log_dir=']
  assert complete('pax --exp=TinyLmB') == ['--exp=TinyLmBytes']


def test_a_completion_imports_none_of_the_slow_packages(shell_env):
  """An answer to a key of a shell must not wait for them."""
  code = (
    'import sys; from pax import main;'
    'main.main(["pax", "completion", "--line=pax --exp="]);'
    'print({"jax", "numpy", "fiddle", "flax"} & set(sys.modules))'
  )
  env = shell_env | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, check=True, stdout=subprocess.PIPE
  )
  *names, imported = done.stdout.decode().splitlines()
  assert len(names) > 100
  assert imported == 'set()'


def test_other_shells_are_refused(capsys):
  assert main.main(['pax', 'completion', 'tcsh']) == 1
  error = capsys.readouterr().err
  assert "wants one of bash, zsh, fish, got 'tcsh'" in error
  assert set(scripts.SCRIPTS) == {'bash', 'zsh', 'fish'}
