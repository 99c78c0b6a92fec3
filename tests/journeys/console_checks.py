"""What must hold of every page of the console, measured in the browser."""

from pathlib import Path

from tests.journeys.browser import Page

AXE = Path("node_modules/axe-core/axe.min.js")

WIDTHS = (320, 768, 960, 1024, 1280, 1440)
STATE = "document.querySelector('.head .badge')?.dataset.state"
SHOWN = "location.hash.startsWith('#/jobs/') && location.hash.slice('#/jobs/'.length)"
READY = "!document.querySelector('.skeleton') && !!document.querySelector('#view h1')"
DIALOG = "document.querySelector('dialog[open]')"

# Of every text in sight: is it inside the window, cut off, one letter a line, or over another text; in cards,
# is it beside its label; are fields in a row level?
_LAYOUT = """
(() => {
  const faults = [];
  const words = (node) => node.textContent.trim().slice(0, 60);
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    faults.push(`the page is ${root.scrollWidth} wide in ${root.clientWidth}`);
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement;
    let boxed = holder;
    while (getComputedStyle(boxed).display === 'contents') boxed = boxed.parentElement;
    if (!node.nodeValue.trim() || !boxed.checkVisibility({visibilityProperty: true})) continue;
    if (holder.closest('.offscreen, .skip, noscript, option, #toasts, thead')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].filter((each) => each.width > 0.5);
    if (!lines.length) continue;
    const box = range.getBoundingClientRect();
    const cut = holder.closest('.cut');
    const scrolls = holder.closest('pre, textarea, dialog');
    if (!cut && (box.left < -1 || box.right > root.clientWidth + 1))
      faults.push(`outside: ${words(node)}`);
    if (lines.length > 3 && node.nodeValue.trim().length / lines.length < 4)
      faults.push(`letter by letter: ${words(node)}`);
    if (holder.closest('td.num') && lines.length > 1) faults.push(`a figure in two lines: ${words(node)}`);
    const card = holder.closest('td[data-label]');
    if (card && getComputedStyle(card).display === 'grid') {
      const label = parseFloat(getComputedStyle(card).gridTemplateColumns);
      const inside = box.left - card.parentElement.getBoundingClientRect().left;
      const others = [...card.parentElement.cells]
        .map((each) => parseFloat(getComputedStyle(each).paddingLeft));
      if (inside < label) faults.push(`under its label: ${words(node)}`);
      if (others.some((each) => each > 0)) faults.push(`indented: ${words(node)}`);
    }
    for (let each = holder; each && !cut && !scrolls; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (style.overflowX === 'visible') continue;
      const inside = each.getBoundingClientRect();
      if (box.left < inside.left - 1 || box.right > inside.right + 1)
        faults.push(`cut off: ${words(node)}`);
    }
    const seen = cut ? cut.getBoundingClientRect() : null;
    if (!holder.closest('.chart, pre')) texts.push(...lines.map((line) => ({
      node, left: line.left, top: line.top + 2,
      right: seen ? Math.min(line.right, seen.right) : line.right, bottom: line.bottom - 2 })));
  }
  texts.sort((one, other) => one.top - other.top);
  const fixed = (node) => !!node.parentElement.closest('#bar');
  for (let at = 0; at < texts.length; at += 1)
    for (let next = at + 1; next < texts.length && texts[next].top < texts[at].bottom; next += 1) {
      const [one, other] = [texts[at], texts[next]];
      if (one.node === other.node || fixed(one.node) !== fixed(other.node)) continue;
      if (Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2
        && Math.min(one.bottom, other.bottom) - other.top > 1)
        faults.push(`overlap: ${words(one.node)} | ${words(other.node)}`);
    }
  const fields = [...document.querySelectorAll('.part > .field')].filter((each) => each.checkVisibility());
  for (const [at, field] of fields.entries()) {
    const next = fields[at + 1];
    const top = (each) => each.getBoundingClientRect().top;
    const [one, other] = [field, next].map((each) => each?.querySelector('input, select, textarea'));
    if (one && other && field.parentElement === next.parentElement && Math.abs(top(field) - top(next)) < 1
      && Math.abs(top(one) - top(other)) > 1) faults.push(`beside each other, not level: ${words(field)}`);
  }
  return [...new Set(faults)].slice(0, 10);
})()
"""


async def layout_faults(page: Page) -> list[str]:
    found: list[str] = await page.value(_LAYOUT)
    return found


async def axe_faults(page: Page) -> list[str]:
    """What axe finds serious or critical."""
    # Through the debugging protocol: the page's own rules allow it no script from elsewhere.
    await page.value(f"if (!window.axe) {{ {AXE.read_text()} }}")
    found: list[str] = await page.settled(
        "axe.run({resultTypes: ['violations']}).then(({violations}) => violations"
        ".filter(({impact}) => impact === 'serious' || impact === 'critical')"
        ".map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(({target}) => target).join(' ')}`))"
    )
    return found


async def opened(page: Page, url: str) -> None:
    """The page at this address, with what it reads."""
    await page.go("about:blank")
    await page.go(url)
    await page.until(READY)
