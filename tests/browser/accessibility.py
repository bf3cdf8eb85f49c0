"""Measurements of a page in a browser: whether people can read it and reach all controls."""

from __future__ import annotations

from typing import Any, Final

from playwright.async_api import Page

CONTRAST_MIN: Final = 4.5
FOCUS_CONTRAST_MIN: Final = 3.0
FOCUS_PIXELS_MIN: Final = 2
TABS_MAX: Final = 20  # The page of the API has hundreds of similar controls.
CONTROLS: Final = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"

MEASURES: Final = """
const rgba = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
};
const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3]));
const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
    const [less, more] = [light(one), light(other)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);
};
const behind = (element) => {
    if (element === null) return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
};
const shown = (element) => element.checkVisibility({visibilityProperty: true, opacityProperty: true});
const named = (element) => `${element.tagName.toLowerCase()} ${(element.textContent || "").trim().slice(0, 40)}`;
"""

PAGE_MEASURES: Final = f"""(controls) => {{
    {MEASURES}
    const all = [...document.body.querySelectorAll("*")].filter(shown);
    const texts = all.filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    const described = (one) => `${{named(one)}} ${{ratio(one).toFixed(2)}}`;
    const ratio = (one) => contrast(over(rgba(getComputedStyle(one).color), behind(one)), behind(one));
    const scrolls = (one) => one.scrollWidth > one.clientWidth + 1 &&
        ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
    const fields = [...document.querySelectorAll("input:not([type=hidden]), select, textarea")];
    const buttons = [...document.querySelectorAll("a[href], button")];
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    return {{
        lang: document.documentElement.lang,
        title: document.title,
        headings: document.querySelectorAll("h1").length,
        landmarks: document.querySelectorAll("main").length,
        too_wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        texts: texts.length,
        faint: texts.filter((one) => ratio(one) < {CONTRAST_MIN}).map(described),
        unlabelled: fields.filter((one) => one.labels.length === 0 && !one.ariaLabel).map(named),
        unnamed: buttons.filter((one) => !(one.innerText || one.textContent || one.ariaLabel || "").trim()).map(named),
        stuck: all.filter((one) => scrolls(one) && one.tabIndex < 0).map(named),
        cut: buttons.filter((one) => shown(one) && !one.matches(".skip") &&
            one.getBoundingClientRect().right > innerWidth + 1 && one.closest(".wide, pre") === null).map(named),
        twice: ids.filter((id, n) => ids.indexOf(id) !== n),
        controls: [...document.querySelectorAll(controls)].filter(shown).length,
    }};
}}"""

RESET_FOCUS: Final = """() => {
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
    scrollTo(0, 0);
}"""

FOCUS_MEASURES: Final = f"""(controls) => {{
    {MEASURES}
    const one = document.activeElement;
    if (one === null || one === document.body) return null;
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    return {{
        index: [...document.querySelectorAll(controls)].filter(shown).indexOf(one),
        name: named(one),
        ring: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
        contrast: contrast(over(rgba(style.outlineColor), behind(one.parentElement)), behind(one.parentElement)),
        visible: box.width > 0 && box.height > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight &&
            box.left < innerWidth,
    }};
}}"""


async def accessibility_problems(page: Page) -> list[str]:
    """Return the accessibility problems of a page."""
    measures: dict[str, Any] = await page.evaluate(PAGE_MEASURES, CONTROLS)
    problems = [
        f"{name}: {measures[name]}"
        for name in ("faint", "unlabelled", "unnamed", "stuck", "cut", "twice")
        if measures[name]
    ]
    if (measures["lang"], measures["headings"], measures["landmarks"]) != ("en", 1, 1) or not measures["title"].strip():
        problems.append(
            f"lang {measures['lang']!r}, title {measures['title']!r}, "
            f"{measures['headings']} h1, {measures['landmarks']} main"
        )
    if measures["too_wide"] > 0:
        problems.append(f"{measures['too_wide']} pixels too wide")
    if measures["texts"] == 0:
        problems.append("nothing to read")
    return problems + await _focus_problems(page, measures["controls"])


async def _focus_problems(page: Page, controls: int) -> list[str]:
    """Return controls that the keyboard does not reach, or whose focus is not visible."""
    problems: list[str] = []
    reached: set[int] = set()
    await page.evaluate(RESET_FOCUS)
    for _ in range(TABS_MAX):
        await page.keyboard.press("Tab")
        focused: dict[str, Any] | None = await page.evaluate(FOCUS_MEASURES, CONTROLS)
        if focused is None or focused["index"] in reached:
            break
        reached.add(focused["index"])
        if focused["ring"] < FOCUS_PIXELS_MIN or focused["contrast"] < FOCUS_CONTRAST_MIN or not focused["visible"]:
            problems.append(f"focus is not visible: {focused}")
    if reached != set(range(min(controls, TABS_MAX))):
        problems.append(f"only {sorted(reached)} of {controls} controls are reached with the keyboard")
    return problems
