# SPDX-License-Identifier: Apache-2.0
"""Configuration of Sphinx for the site; //docs:site builds it."""

project = 'Pax'
author = 'The Pax authors'
copyright = author
language = 'en'

extensions = ['myst_parser', 'tools.docs.python_domain']
source_suffix = {'.md': 'markdown'}
myst_enable_extensions = ['colon_fence', 'fieldlist']
# Anchors of headings that links between pages name, as on GitHub.
myst_heading_anchors = 4

# Annotations of signatures name classes as their modules import them; several
# modules have a class of the same name.
suppress_warnings = ['ref.python']

html_theme = 'furo'
html_title = 'Pax'
html_static_path = ['images']
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {'navigation_with_keys': True}
html_permalinks_icon = '#'
add_module_names = False
maximum_signature_line_length = 79
python_use_unqualified_type_names = True
toc_object_entries = False
highlight_language = 'text'
# Quotes and -- stay as written: most are of code and flags.
smartquotes = False
