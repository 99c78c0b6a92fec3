"""How secrets are known: by the names under which people keep them, and by their looks in a text.

In: the name of a member. Out: whether what it holds looks like a credential. The name alone is judged, so
that no value need be read or shown. Names are compared without `-`, `_`, blanks and case; words about
language models (`max_tokens`, `tokenizer`) are not secrets.

In: a text for people, for example of an exception. Out: the same text without credentials.

In: a URI. Out: whether it carries credentials. More is asked here than of a text, since no name in a path
may be refused (`/secret=santa/lk_1_2.pdf`); clients and services are held to the same.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

BLANK: Final = "***"

# A text may be as large as a message, and come from a service that is not trusted: each form takes time in
# proportion to the text. So a form either begins where a word does, or has found what it looks for after a
# bounded number of characters, or takes in all that it has read.

# Tokens that say themselves what they are: GitHub, GitLab, OpenAI and its like, Stripe, AWS, Slack, Google,
# npm, Hugging Face, PyPI, SendGrid, DigitalOcean, Shopify.
_ISSUED: Final = (
    r"\b(?:gh[oprsu]_[0-9A-Za-z]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|sk-[\w-]{16,}"
    r"|[rs]k_(?:live|test)_\w{10,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{10,}"
    r"|AIza[\w-]{20,}|ya29\.[\w-]{16,}|npm_\w{20,}|hf_\w{20,}|pypi-[\w-]{16,}|SG\.[\w-]{16,}[\w.-]*"
    r"|dop_v1_\w{16,}|shp(?:at|ca|pa|ss)_\w{16,})"
)
# A signed token, an API key, the user and password of a URL, a signed query, what grants access in a
# connection string; whatever is said under the name of a secret (after a colon only what has a digit, for
# "password: must not be empty" is a sentence); a private key. A signed token has a dot: see `_blank`.
_NAMED: Final = (
    r"(?<![\w-])[\w-]*(?:(?:access|refresh|auth|api|session|security)[_-]?token|client[_-]?secret"
    r"|(?:api|secret|private|account|access)[_-]?key|password|passwd)[\"']?"
)
_FORMS: Final = (
    r"(?P<signed>\beyJ[\w-]{5,}(?:\.[\w-]*){0,4})"
    rf"|{_ISSUED}"
    r"|\blk_[0-9A-Za-z]+_[0-9A-Za-z_-]+|\bwhsec_[A-Za-z0-9+/=_-]+"
    r"|(?<=://)[^\s/@:]*:[^\s/@]*(?=@)"
    r"|(?i:(?<=[?&])(?:sig|signature|x-amz-signature|x-amz-credential|token)=)[^\s&\"']+"
    r"|(?i:(?<![\w-])sig=)[\w%+/=-]{16,}"
    r"|(?i:\b(?:accountkey|sharedaccesskey|sharedaccesssignature|secret|pwd|x-amz-credential)=)[^\s;&\"']+"
    rf"|(?i:{_NAMED}\s*=\s*[\"']?)[^\s&;,\"']+"
    rf"|(?i:{_NAMED}\s*:\s*[\"']?)(?=[^\s&;,\"']{{0,256}}[0-9])[^\s&;,\"']{{4,}}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
# Short words after `bearer` and words after `basic` are words: "Basic validation failed".
_in_words = re.compile(
    r"(?i:\bbearer\s+)[^\s\"']{12,}"
    r"|(?i:\bbasic\s+)(?=[A-Za-z0-9+/]*(?:[a-z][A-Z]|[0-9]))[A-Za-z0-9+/]{8,}=*|" + _FORMS
)
# In a log there is no need to let sentences be.
_in_logs = re.compile(r"(?i:\b(?:bearer|basic)\s+)[^\s\"']+|" + _FORMS)

_DROPPED: Final = str.maketrans("", "", "-_ .")

_EXACT: Final = frozenset(
    {
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "clientsecret",
        "bearer",
        "bearertoken",
        "authorization",
        "credential",
        "credentials",
        "callbacktoken",
        "idtoken",
        "sessiontoken",
        "securitytoken",
        "signingkey",
        "secretaccesskey",
        "accesskeyid",
        "sharedaccesskey",
        "sharedaccesssignature",
        "xapikey",
        "xamzsecuritytoken",
    }
)

# A prefix only says whose secret it is: `db_password`, `openaiApiKey`.
_ENDINGS: Final = (
    "password",
    "passwd",
    "clientsecret",
    "apikey",
    "apitoken",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "sastoken",
    "connectionstring",
)


# In small letters; one of them is in whatever the expression finds. Nearly every text has none, which is seen
# in a hundredth of the time.
_SIGNS: Final = (
    *("bearer", "basic", "eyj", "lk_", "whsec_", "@"),
    *("sig=", "signature=", "credential=", "token", "key", "secret", "password", "passwd", "pwd="),
    *("ghp_", "gho_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "sk-", "k_live_", "k_test_"),
    *("akia", "asia", "xox", "xapp-", "aiza", "ya29.", "npm_", "hf_", "pypi-", "sg.", "dop_v1_", "shp"),
)


def blank_credentials(text: str) -> str:
    return _in_words.sub(_blank, text) if _has_sign(text) else text


def blank_in_log(text: str) -> str:
    return _in_logs.sub(_blank, text) if _has_sign(text) else text


def holds_credentials(text: str) -> bool:
    return _has_sign(text) and any(map(_is_one, _in_words.finditer(text)))


def _has_sign(text: str) -> bool:
    found = text.lower().__contains__
    return any(map(found, _SIGNS))


def _blank(found: re.Match[str]) -> str:
    return BLANK if _is_one(found) else found[0]


def _is_one(found: re.Match[str]) -> bool:
    signed = found["signed"]
    return signed is None or "." in signed


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    plain = name.translate(_DROPPED).casefold()
    return plain in _EXACT or plain.endswith(_ENDINGS)


def names_secret(name: str) -> bool:
    """Of a member of a message: a `token` there grants access, one in a payload may be a word."""
    return name == "token" or looks_secret(name)


# Query members, beyond those that `looks_secret` knows, with which stores sign or authorise a URI.
_SIGNING_MEMBERS: Final = frozenset(
    {
        "sig",
        "signature",
        "token",
        "jwt",
        "auth",
        "xamzsignature",
        "xamzcredential",
        "xgoogsignature",
        "xgoogcredential",
        "googleaccessid",
        "awsaccesskeyid",
        "keypairid",
    }
)
# Pieces of connection strings and signed URIs that are secrets wherever they stand.
_SECRET_PIECES: Final = (
    "accountkey=",
    "sharedaccesskey=",
    "sharedaccesssignature=",
    "x-amz-signature=",
    "x-amz-security-token=",
    "x-goog-signature=",
)
# What is never the name of a file: a signed token, an API key, a webhook's secret, a token of known kind and
# length.
_token = re.compile(
    r"\b(?:gh[oprsu]_[0-9A-Za-z]{36}|github_pat_\w{40}|glpat-[\w-]{20}|xox[a-z]-[0-9]{6}[\w-]{10}|AIza[\w-]{35})"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]{5,}|\blk_[0-9A-Za-z]+_[\w-]{20,}|\bwhsec_[A-Za-z0-9+/=_-]{16,}"
)
_TOKEN_SIGNS: Final = ("eyJ", "lk_", "whsec_", "gh", "github_pat_", "glpat-", "xox", "AIza")
_MEMBER_END: Final = re.compile(r"[&;?#]")
_AUTHORITY: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
# Of an address within, such as one that a query names.
_inner_password = re.compile(r"(?:^\s*|[:=&?#/])//[^\s/@:?#]*:[^\s/@?#]+@").search
DECODE_ROUNDS_MAX: Final = 4
# One of these is in every URI that is found to carry credentials, and in hardly any that does not.
_suspicious = re.compile(r"[@?#%=]|" + "|".join(_TOKEN_SIGNS)).search


def uri_holds_credentials(uri: str) -> bool:
    """A user's password, or what `tail_holds_credentials` knows, at every depth of percent-encoding."""
    if "://" not in uri and holds_credentials(uri):  # no URI, but a text
        return True
    if _suspicious(uri) is None:
        return False
    found = _AUTHORITY.match(uri)
    scheme, authority = ("", "") if found is None else (found[1].lower(), found[2])
    user, at, _ = authority.rpartition("@")
    # Azure's `abfs://CONTAINER@ACCOUNT` names no user.
    if at and (":" in user or scheme in ("http", "https")):
        return True
    tail = uri if found is None else uri[found.end() :]
    for _ in range(DECODE_ROUNDS_MAX):
        if tail_holds_credentials(tail):
            return True
        if (decoded := unquote(tail)) == tail:
            break
        tail = decoded
    return False


def tail_holds_credentials(tail: str) -> bool:
    """Of a path with its query and fragment, as it is spelt."""
    lowered = tail.lower()
    if any(piece in lowered for piece in _SECRET_PIECES):
        return True
    if any(sign in tail for sign in _TOKEN_SIGNS) and _token.search(tail) is not None:
        return True
    if "@" in tail and _inner_password(tail) is not None:
        return True
    starts = [at for at in (tail.find("?"), tail.find("#")) if at >= 0]
    if not starts:
        return False
    names = (member.partition("=")[0].strip() for member in _MEMBER_END.split(tail[min(starts) :]))
    return any(looks_secret(name) or _plain(name) in _SIGNING_MEMBERS for name in names)


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def secret_member(ref: Mapping[str, Any]) -> str | None:
    """The member of a reference that carries credentials, by its name, its value or what lies below."""
    for name, value in ref.items():
        if name == "uri" and isinstance(value, str):
            if uri_holds_credentials(value):
                return name
        elif _is_secret(name, value) or _holds_secrets(value):
            return name
    return None


def _holds_secrets(value: Any) -> bool:
    left = [value]  # not by recursion: what was sent may lie deep
    while left:
        match left.pop():
            case str() as text:
                if (uri_holds_credentials if _AUTHORITY.match(text) else holds_credentials)(text):
                    return True
            case dict() as members:
                if any(_is_secret(*member) for member in members.items()):
                    return True
                left += members.values()
            case list() as items:
                left += items
    return False


def _is_secret(name: str, value: Any) -> bool:
    """`has_password: true` names a secret and holds none."""
    named = isinstance(value, str | dict | list) and names_secret(name)
    return (named and bool(value)) or holds_credentials(name)
