# SPDX-License-Identifier: Apache-2.0
"""A software bill of materials in the format of CycloneDX.

References:
  https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from tools.release import licenses, resolution
from tools.release.resolution import Package

_SCHEMA = SchemaVersion.V1_6


def text(
  packages: Sequence[Package],
  built_in: Sequence[Package],
  time: datetime.datetime,
) -> str:
  """Returns the bill of a wheel and of what pip installs with it, as JSON.

  Args:
    packages: the wheel and what pip installs with it, with known licences.
    built_in: headers and libraries that its extensions contain.
    time: of the release; equal arguments give equal bytes.
  """
  wheel, others = resolution.split(packages)
  root = _component(wheel)
  root.components.update(map(_component, built_in))
  components = {package.name: _component(package) for package in others}
  serial = uuid.uuid5(uuid.NAMESPACE_URL, f'{root.purl}#{wheel.sha256}')
  bom = Bom(
    serial_number=serial,
    metadata=BomMetaData(component=root, timestamp=time),
    components=components.values(),
  )
  for package in packages:
    bom.register_dependency(
      components.get(package.name, root),
      [components[name] for name in package.requires],
    )
  return make_outputter(bom, OutputFormat.JSON, _SCHEMA).output_as_string(
    indent=2
  )


def _component(package: Package) -> Component:
  found = licenses.of(package)
  kind, _, owner = package.origin.partition('/')
  purl = PackageURL(
    kind, namespace=owner, name=package.name, version=package.version
  )
  checksum = HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)
  return Component(
    bom_ref=purl.to_string(),
    type=ComponentType.LIBRARY,
    name=package.name,
    version=package.version,
    purl=purl,
    hashes=[checksum] if package.sha256 else (),
    licenses=[LicenseExpression(found.expression)] if found else (),
  )
