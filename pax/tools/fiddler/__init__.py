# SPDX-License-Identifier: Apache-2.0
"""Configs of experiments made simpler, drawn, and written as code.

Known to paxml's code as `paxml.tools.fiddle`; a folder of that name beside
programs would hide Fiddle itself.
"""
