"""Reports as data, and their three forms: what every page about a run is made of.

>>> from npmdask.report import Report, as_html
>>> "<h1>my run</h1>" in as_html(Report(title="my run", outcome="done", good=True, sections=()))
True
"""

from npmdask.report.blocks import Bars, Image, Map, Plot, Report, Rule, Section, Series, Table, Text, TopicMap
from npmdask.report.render import as_html, as_json, as_markdown

__all__ = [
    "Bars",
    "Image",
    "Map",
    "Plot",
    "Report",
    "Rule",
    "Section",
    "Series",
    "Table",
    "Text",
    "TopicMap",
    "as_html",
    "as_json",
    "as_markdown",
]
