# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""One or two lines for every error."""

from __future__ import annotations

import importlib

import pytest

from pax.runner import error_report
from praxis.pax_fiddle import build_errors


class BaseModel:
  pass


class Model(BaseModel):
  pass


class Layer:
  pass


@pytest.mark.parametrize(
  ('error', 'text'),
  [
    (ValueError('for users'), 'for users'),
    (OSError(2, 'gone', 'x'), "[Errno 2] gone: 'x'"),
    (KeyError('k'), "KeyError: 'k' (--traceback shows where)"),
    (
      OSError('the disk is gone'),
      'OSError: the disk is gone (--traceback shows where)',
    ),
    (ValueError('a\n\n  b\nc'), 'a\n  b (--traceback shows where)'),
    (ValueError('x' * 5000), f'{"x" * 2000}... (--traceback shows where)'),
  ],
)
def test_text(error, text):
  assert error_report.text(error) == text


def test_a_failed_import_has_the_line_that_imports(tmp_path, monkeypatch):
  file = tmp_path / 'experiments_of_a_user.py'
  file.write_text('"""Experiments."""\nimport missing_package\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ImportError) as caught:
    importlib.import_module(file.stem)
  assert error_report.text(caught.value) == (
    f"ModuleNotFoundError: No module named 'missing_package', in {file}, line 2"
    ' (--traceback shows where)'
  )


def test_the_path_is_that_of_set():
  error = ZeroDivisionError('division by zero')
  location = build_errors.Location(Model, '.lm_tpl.softmax_tpl', Layer)
  build_errors.attach(error, location)
  assert error_report.text(error) == (
    'task.model.lm_tpl.softmax_tpl (Layer): ZeroDivisionError: division by zero'
    ' (--traceback shows where)'
  )


def test_the_traceback_comes_first(capsys):
  try:
    raise ValueError('wrong')
  except ValueError as e:
    error_report.print_error(e, show_traceback=True)
  shown = capsys.readouterr().err
  assert shown.startswith('Traceback') and shown.endswith(
    '\npax: error: wrong\n'
  )
