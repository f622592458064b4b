"""Make the one ES module that an anywidget wants out of several small ones.

A front end loads it from text, where relative imports lead nowhere. The files stay real modules:
tests and type checkers read them as they are. Called once, by `panel`, when the class is made.
"""

import re
from pathlib import Path

FILES = ("amounts.js", "nodes.js", "chart.js", "service.js", "views.js", "panel.js")
"""Each after what it imports; only the last one's default export remains."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function|const)", re.MULTILINE)


def page_script(folder: Path) -> str:
    """Return the modules of a folder as one, in which every name is top-level and unique."""
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)
    return _EXPORT.sub("", _IMPORT.sub("", text))
