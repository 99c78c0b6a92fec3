"""The certificate as a page for people: one HTML file that needs no other."""

from html import escape

from lucius.certify.rules import CONTRACT
from lucius.certify.values import Certificate, Judgement, RuleVerdict

_MARK = {
    Judgement.PASSED: "✓",
    Judgement.FAILED: "✗",
    Judgement.NOT_TRIED: "–",
    Judgement.NOT_APPLICABLE: "–",
}
_CLASS = {Judgement.PASSED: "passed", Judgement.FAILED: "failed"}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
.sum { font-size: 1.1rem; } .fact { color: #555; }
article { border-left: .4rem solid; padding: .2rem 0 .2rem 1rem; margin: 1rem 0; }
article h2 { font-size: 1rem; margin: 0; } article p { margin: .2rem 0; }
.passed { border-color: #1a7f37; } .failed { border-color: #b42318; } .untried { border-color: #8a8a8a; }
code, li { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #161616; } .fact { color: #aaa; } }
"""


def summary(certificate: Certificate) -> str:
    """`17 passed, 1 failed, 2 not tried`."""
    counts = [(len(certificate.those(judgement)), judgement) for judgement in Judgement]
    return ", ".join(f"{count} {judgement}" for count, judgement in counts if count)


def html_page(certificate: Certificate) -> str:
    verdict = "holds" if certificate.passed else "does not hold"
    name = f"{escape(certificate.service)} ({escape(certificate.step_type)})"
    facts = (
        f"over {certificate.carrier}, {certificate.at}, {certificate.seconds:.1f} s, "
        f"Lucius {escape(certificate.lucius)}"
    )
    rules = "\n".join(_article(each) for each in certificate.verdicts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Certificate of {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Certificate of the service {name}</h1>\n"
        f'<p class="sum">It {verdict}: {summary(certificate)}.</p>\n<p class="fact">{facts}</p>\n'
        f"{rules}\n</body>\n</html>\n"
    )


def _article(verdict: RuleVerdict) -> str:
    seen = "".join(f"<li>{escape(line)}</li>" for line in verdict.evidence)
    return (
        f'<article class="{_CLASS.get(verdict.judgement, "untried")}" id="{verdict.rule}">\n'
        f"<h2>{_MARK[verdict.judgement]} {escape(verdict.title)}</h2>\n"
        f'<p class="fact"><code>{verdict.rule}</code> {verdict.judgement}, {verdict.seconds:.1f} s; '
        f"contract: {CONTRACT}#{verdict.paragraph}</p>\n"
        f"<p>{escape(verdict.done)} Expected: {escape(verdict.expected)}</p>\n<ul>{seen}</ul>\n</article>"
    )
