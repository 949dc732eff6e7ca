# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
# bazel: size=medium
"""Answers to wrong command lines: an exit code and one line.

    UPDATE_GOLDEN=1 pytest tests/golden/wrong_command_lines_test.py

runs the commands of wrong_command_lines.txt, all in this process, and rewrites
their answers. There, $JOB is an empty folder and $TINY an experiment; a line
break is written as in Python.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import shlex

import jax
import pytest

from pax import main
from tests.integration import binary

_FILE = pathlib.Path(__file__).parent / 'wrong_command_lines.txt'
_TEXT = _FILE.read_text(encoding='utf-8')
# A command, its exit code, its last line on stderr.
_CASE = re.compile(r'^\$ (.*)\n\[(.*?)\] ?(.*)$', re.M)
_NEAR_NAMES = re.compile(r"(no experiment is called '.*?'\.) .*")
_ANSWERS = {command: answer for command, *answer in _CASE.findall(_TEXT)}
_TINY = f'{binary.EXPERIMENTS}.TinySpmd'


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
  """Runs a command; returns its exit code and its lines on stderr."""
  jax.devices()
  # Of the cache of compiled programs.
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  monkeypatch.chdir(tmp_path)
  cache_dir = jax.config.jax_compilation_cache_dir
  handlers = logging.root.handlers[:]
  job = tmp_path / 'job'
  job.mkdir()

  def run(command: str) -> tuple[int, list[str]]:
    command = command.replace('$JOB', str(job)).replace('$TINY', _TINY)
    words = [word.replace('\\n', '\n') for word in shlex.split(command)]
    code = main.main(words)
    text = capsys.readouterr().err.replace(str(job), '$JOB')
    # The names near a wrong one depend on the modules that are imported.
    text = _NEAR_NAMES.sub(r'\1 ...', text.replace(str(tmp_path), '$PWD'))
    return code, text.strip().splitlines()

  yield run
  jax.config.update('jax_compilation_cache_dir', cache_dir)
  logging.root.handlers[:] = handlers


@pytest.mark.parametrize('command', _ANSWERS)
def test_answer(command, answer):
  code, lines = answer(command)
  assert code == 1, lines
  assert len(lines) <= 2, lines
  assert lines[-1].startswith('pax: error: '), lines
  assert not any('Traceback' in line for line in lines)
  if os.environ.get('UPDATE_GOLDEN') == '1':
    _ANSWERS[command] = [str(code), lines[-1]]
    _FILE.write_text(_CASE.sub(lambda m: _case(m[1]), _TEXT), encoding='utf-8')
  assert [str(code), lines[-1]] == _ANSWERS[command]


def test_there_are_150_commands():
  assert len(_ANSWERS) >= 150


def _case(command: str) -> str:
  code, line = _ANSWERS[command]
  return f'$ {command}\n[{code}] {line}'
