"""Elements of a page, built as a tree: text stays text, and no HTML is put together from strings.

Invisible characters are escaped as in all that the command prints (`printable`): controls, and marks that turn the
direction of writing, which could make a name look like another one.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from penstock.cli.answer import printable

Element = ET.Element
Child = ET.Element | str | None


def tag(name: str, /, *children: Child, **attributes: object) -> Element:
    """Return an element; `class_` and `aria_label` stand for `class` and `aria-label`, and attributes that are `None` are left out."""
    element = ET.Element(name)
    for key, value in attributes.items():
        if value is not None:
            element.set(key.rstrip("_").replace("_", "-"), printable(str(value)))
    append(element, *children)
    return element


def append(element: Element, *children: Child) -> None:
    """Put children after those that an element has."""
    for child in children:
        if isinstance(child, ET.Element):
            element.append(child)
        elif child is not None:
            text = printable(child)
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text


def html(element: Element) -> str:
    """Return an element as HTML."""
    return ET.tostring(element, encoding="unicode", method="html")
