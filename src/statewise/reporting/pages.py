"""What all pages of reports have in common: their style, for bright and dark screens, and for phones."""

from __future__ import annotations

STYLE = """
:root { --back: #ffffff; --ink: #2f3b4c; --soft: #5d6878; --line: #e3e7ec; --faint: #f2f4f7; --right: #2f7d4c;
  --wrong: #c8442f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --back: #14181e; --ink: #e4e8ee; --soft: #a3adba; --line: #333c48;
  --faint: #222932; --right: #63c389; --wrong: #ff8a75; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: .95rem; font-weight: 600; margin: .4rem 0; white-space: pre-line; }
h1, h2, h3 { overflow-wrap: anywhere; }
p.note { color: var(--soft); margin: .2rem 0; } p.finding { font-size: 1.1rem; margin: .6rem 0 .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { border-bottom: 2px solid var(--ink); }
code { background: var(--faint); padding: 0 .3em; border-radius: 3px; overflow-wrap: anywhere; }
@media (max-width: 640px) { body { padding: 0 .8rem; margin: 1rem auto; } th, td { padding: .3rem .4rem; } }
"""
"""Colours are variables of the root."""
