# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//:all_files
# bazel: deps=//pax:main_lib
"""The files of docs/launch are what docs/launching.md says makes them."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess

import pytest
import yaml

from pax.tools import commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'launching.md'
LINES = [
  line.strip()
  for line in PAGE.read_text().splitlines()
  if line.startswith('    pax launch --print')
]


@pytest.mark.parametrize('line', LINES)
def test_the_file_is_what_its_command_prints(line, capsys):
  command, _, name = line.partition(' > ')
  assert commands.run(shlex.split(command)) == 0
  printed = capsys.readouterr().out
  file = ROOT / name
  if os.environ.get('UPDATE_GOLDEN') == '1':
    file.parent.mkdir(exist_ok=True)
    file.write_text(printed)
  assert file.read_text() == printed, 'UPDATE_GOLDEN=1 rewrites it'


def test_every_file_has_its_command():
  made = {line.partition(' > ')[2] for line in LINES}
  files = {str(p.relative_to(ROOT)) for p in (ROOT / 'docs/launch').iterdir()}
  assert made == files


@pytest.mark.parametrize('file', sorted((ROOT / 'docs/launch').iterdir()))
def test_what_reads_it_can_read_it(file):
  if file.suffix == '.sh':
    subprocess.run(['bash', '-n', str(file)], check=True)
  else:
    assert yaml.safe_load(file.read_text())['kind'] == 'JobSet'
