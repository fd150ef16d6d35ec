"""The site: `make docs` builds it into build/site, without a network."""

from __future__ import annotations

import os
import sys
from functools import partialmethod
from pathlib import Path

from nbclient import NotebookClient

from ofms import __version__

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
# Notebooks run the command of the same environment, and quietly.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

project = "ofms"
author = "The ofms authors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "mathml",
    "public_names",
    "plain_text",
]
exclude_patterns = ["results/*", "_*", "**/.ipynb_checkpoints"]

# Docstrings put names between single backquotes.
default_role = "code"

html_theme = "furo"
html_title = f"ofms {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Formulas are MathML, made while building: the site is plain files that need no network.
html_math_renderer = "mathml"

myst_enable_extensions = ["amsmath", "dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
# IPython passes on the output of commands in pieces. Joined by nbclient they are the text again; MyST-NB alone
# would put a line break after each.
NotebookClient.__init__ = partialmethod(NotebookClient.__init__, coalesce_streams=True)

copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

nitpicky = True
# Signatures name types of NumPy, PyTorch and the standard library, whose sites are elsewhere, and types of this package
# that users do not name themselves.
nitpick_ignore_regex = [("py:.*", r"(?!ofms\.).*"), ("py:class", r"ofms\.\w+\.[\w.]+")]
