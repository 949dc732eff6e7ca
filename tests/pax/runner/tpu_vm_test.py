# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Whether a TPU VM is one of many, as a metadata server says."""

from __future__ import annotations

import http.server
import threading

import pytest

from pax.runner import tpu_vm

PATH = '/computeMetadata/v1/instance/attributes/'


@pytest.fixture
def served(monkeypatch, tmp_path):
  """Attributes that a server has; and one TPU on this machine."""
  attributes = {}

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      text = attributes.get(self.path.removeprefix(PATH))
      known = text is not None and self.headers['Metadata-Flavor'] == 'Google'
      self.send_response(200 if known else 404)
      self.end_headers()
      self.wfile.write((text or '').encode())

    def log_message(self, *unused):
      pass

  with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    address = f'127.0.0.1:{server.server_port}'
    monkeypatch.setenv('GCE_METADATA_IP', address)
    monkeypatch.setenv('http_proxy', 'http://127.0.0.1:1')
    monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)
    _add_device(tmp_path, '0x8086')
    _add_device(tmp_path, '0x1ae0')
    monkeypatch.setattr(tpu_vm, '_PCI_DEVICES', tmp_path)
    yield attributes
    server.shutdown()
    thread.join()


def _add_device(folder, vendor):
  (folder / vendor).mkdir()
  (folder / vendor / 'vendor').write_text(f'{vendor}\n')


@pytest.mark.parametrize(
  ('attributes', 'many'),
  [
    ({'worker-network-endpoints': 'a:b:10.0.0.1,c:d:10.0.0.2'}, True),
    ({'worker-network-endpoints': 'a:b:10.0.0.1'}, False),
    ({'tpu-env': "ZONE: 'z'\nMEGASCALE_NUM_SLICES: '2'\n"}, True),
    ({'tpu-env': "MEGASCALE_NUM_SLICES: '1'\n"}, False),
    ({'tpu-env': "ZONE: 'z'\n"}, False),
    ({}, False),
  ],
)
def test_what_the_server_says(served, attributes, many):
  served.update(attributes)
  assert tpu_vm.is_multihost() == many


def test_nobody_is_asked_without_tpus(served, monkeypatch, tmp_path):
  served['worker-network-endpoints'] = 'a,b'
  monkeypatch.setattr(tpu_vm, '_PCI_DEVICES', tmp_path / 'none')
  assert not tpu_vm.is_multihost()
  monkeypatch.setattr(tpu_vm, '_PCI_DEVICES', tmp_path)
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', '1')
  assert not tpu_vm.is_multihost()


def test_without_a_server(served, monkeypatch):
  served['worker-network-endpoints'] = 'a,b'
  monkeypatch.setenv('GCE_METADATA_IP', '127.0.0.1:1')
  assert not tpu_vm.is_multihost()
