"""Sphinx builds these pages with `make docs`; a link that leads nowhere fails it."""

from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from synth.version import __version__

project = "synth"
author = "the synth authors"
copyright = "2026, the synth authors"
release = __version__
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"synth {__version__}"
exclude_patterns = ["_build", "schemas"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["misc.highlighting_failure"]  # outputs are no language

ROOT = Path(__file__).resolve().parent.parent


class SourceLinks(SphinxTransform):
    """Show a link to a file or folder outside the site as its path; it must exist."""

    default_priority = 4

    def apply(self) -> None:
        """Replace the links before MyST resolves them."""
        links = [*self.document.findall(nodes.reference), *self.document.findall(pending_xref)]
        for link in links:
            target = str(link.get("refuri") or link.get("reftarget") or "")
            is_page = link.get("refdomain") == "doc"  # MyST leaves out its suffix
            path = ROOT / "docs" / (f"{target}.md" if is_page else target.split("#")[0])
            if is_page and path.is_relative_to(ROOT / "docs"):
                continue
            if not is_page and not target.startswith("../") and not path.is_dir():
                continue  # a link to elsewhere
            if not path.exists():
                raise ValueError(f"{self.document['source']}: {target} does not exist")
            shown = link.astext()
            if is_page:
                place = str(path.relative_to(ROOT))
                link.replace_self([nodes.Text(f"{shown} "), nodes.literal(place, place)])
            else:
                link.replace_self(nodes.literal(shown, shown))


def setup(app: Sphinx) -> None:
    """Add the transform."""
    app.add_transform(SourceLinks)
