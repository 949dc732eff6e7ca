# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""One or two lines for every error."""

from __future__ import annotations

import importlib
import sys

import jax
import pytest

from pax.runner import error_report
from praxis import base_layer, base_model, pax_fiddle
from praxis.layers import repeats
from praxis.pax_fiddle import build_errors

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


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


def _text_of_import(folder, monkeypatch, **modules):
  """The message when the first of the modules is imported."""
  for name, source in modules.items():
    (folder / f'{name}.py').write_text(source)
  monkeypatch.syspath_prepend(folder)
  with pytest.raises(Exception) as caught:
    importlib.import_module(next(iter(modules)))
  return error_report.text(caught.value).replace(f'{folder}/', '')


def test_a_failed_import_has_the_line_that_imports(tmp_path, monkeypatch):
  text = _text_of_import(
    tmp_path,
    monkeypatch,
    experiments_of_a_user='"""Experiments."""\nimport missing_package\n',
  )
  assert text == (
    "ModuleNotFoundError: No module named 'missing_package', in"
    ' experiments_of_a_user.py, line 2 (--traceback shows where)'
  )


def test_a_failed_import_has_the_line_of_the_first_module(
  tmp_path, monkeypatch
):
  text = _text_of_import(
    tmp_path,
    monkeypatch,
    experiments_with_model='import os\nimport model_of_a_user\n',
    model_of_a_user='import package_with_fault\n',
    package_with_fault='\n\nimport missing_package\n',
  )
  assert text == (
    "ModuleNotFoundError: No module named 'missing_package', in"
    ' package_with_fault.py, line 3, reached from experiments_with_model.py,'
    ' line 2 (--traceback shows where)'
  )


@pytest.mark.parametrize(
  ('source', 'text'),
  [
    ('class A:\n  x = y\n', "NameError: name 'y' is not defined"),
    ('\nx = = 1\n', 'SyntaxError: invalid syntax (faulty.py, line 2)'),
  ],
)
def test_other_errors_of_an_import_have_their_lines(
  tmp_path, monkeypatch, source, text
):
  monkeypatch.delitem(sys.modules, 'faulty', raising=False)
  monkeypatch.delitem(sys.modules, 'imports_faulty', raising=False)
  direct = _text_of_import(tmp_path, monkeypatch, faulty=source)
  line = f'{text}, in faulty.py, line 2'
  assert direct == f'{line} (--traceback shows where)'
  indirect = _text_of_import(
    tmp_path, monkeypatch, imports_faulty='import faulty\n', faulty=source
  )
  assert indirect == (
    f'{line}, reached from imports_faulty.py, line 1 (--traceback shows where)'
  )


def test_the_path_is_that_of_set():
  error = ZeroDivisionError('division by zero')
  location = build_errors.Location(Model, '.lm_tpl.softmax_tpl', Layer)
  build_errors.attach(error, location)
  assert error_report.text(error) == (
    'task.model.lm_tpl.softmax_tpl (Layer): ZeroDivisionError: division by zero'
    ' (--traceback shows where)'
  )


class Widened(base_layer.BaseLayer):
  def __call__(self, x):
    return x @ jax.numpy.ones((2, 3))


class Pair(base_model.BaseModel):
  first_tpl: LayerTpl = pax_fiddle.template_field(Widened)
  second_tpl: LayerTpl = pax_fiddle.template_field(Widened)

  def setup(self):
    self.create_child('first', self.first_tpl)
    self.create_child('second', self.second_tpl)

  def compute_predictions(self, x):
    return self.second(self.first(x))

  def compute_loss(self, predictions, x):
    return {}, {}


def test_an_error_of_a_call_has_the_path_of_the_layer():
  repeated = pax_fiddle.Config(
    repeats.Repeat, sub_tpl=pax_fiddle.Config(Widened), x_times=2
  )
  for layer_p, path in (
    (pax_fiddle.Config(Widened), 'second (Widened)'),
    (repeated, 'second_tpl.sub_tpl (Widened)'),
  ):
    model = pax_fiddle.Config(Pair, second_tpl=layer_p).Instantiate()
    # The second layer gets 3 values and wants 2.
    with pytest.raises(TypeError) as caught:
      model.init(jax.random.key(0), jax.numpy.ones(2))
    assert error_report.text(caught.value).startswith(
      f'task.model.{path}: TypeError: '
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
