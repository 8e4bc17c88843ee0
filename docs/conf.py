"""Sphinx configuration. Builds offline; a warning is an error (see the Makefile)."""

from __future__ import annotations

import dpfed

project = "dpfed"
author = "The dpfed authors"
copyright = author
version = release = dpfed.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "dev/plan.md"]
html_theme = "furo"
html_title = f"dpfed {release}"
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings are plain prose: a name in single backticks is code.
default_role = "code"
napoleon_custom_sections = ["Privacy"]
# Sphinx imports modules as if for type checking, and pydantic models below MLflow do not survive that.
autodoc_mock_imports = ["mlflow"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
